"""A session with a τ²-bench server, as the agent sees it."""

import json
from copy import deepcopy
from typing import Any, Self

from gavel.scenarios.mcp import McpError, McpServer
from gavel.scenarios.mcp_session import McpSession
from gavel.scenarios.tools import ToolResult, no_such_tool

_KEY = "state_key"
_HIDDEN = frozenset({"reset_state", "get_call_log"})


class Tau2Session(McpSession):
    """The domain's tools, without those of the benchmark itself and the key of the records."""

    def __init__(self, server: McpServer, domain: str, case: str) -> None:
        super().__init__(server)
        self._key = {"domain": domain, "task_id": case, _KEY: f"tau2/{domain}/{case}"}

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            made = await super().call("reset_state", json.dumps(self._key))
            if made.error:
                raise McpError(f"the server of τ²-bench begins no records: {made.content[:500]}")
        except BaseException:
            await self.__aexit__()
            raise
        self.schemas = [deepcopy(each) for each in self.schemas if each["function"]["name"] not in _HIDDEN]
        for schema in self.schemas:
            parameters = schema["function"]["parameters"]
            parameters.get("properties", {}).pop(_KEY, None)
            if _KEY in (required := parameters.get("required", [])):
                required.remove(_KEY)
        return self

    async def call(self, name: str, arguments: str) -> ToolResult:
        offered = [schema["function"]["name"] for schema in self.schemas]
        if name not in offered:
            return no_such_tool(name, offered)
        try:
            given: Any = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if isinstance(given, dict):
            arguments = json.dumps({**given, _KEY: self._key[_KEY]})
        result = await super().call(name, arguments)
        try:
            envelope: object = json.loads(result.content)
        except ValueError:
            return result
        match envelope:  # the tool's own result is in it
            case {"tau2_tool_message": {"content": str(content), "error": bool(error)}}:
                return ToolResult(content, error=error)
            case _:
                return result
