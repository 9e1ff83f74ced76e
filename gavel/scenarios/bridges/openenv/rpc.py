"""MCP's JSON-RPC calls on sessions: `tools/list`, `tools/call`, and OpenEnv's `openenv/session/create` and `/close`."""

import logging
from typing import Any, cast

from pydantic import ValidationError

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.bridges.openenv.session_table import FullError, SessionTable

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMETERS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
SERVER_ERROR = -32000
logger = logging.getLogger(__name__)


class McpCalls:
    def __init__(self, sessions: SessionTable) -> None:
        self._sessions = sessions

    async def answer(self, call: Any, own: str | None) -> Message:
        """The answer to a call. `own`: the session of its connection; else the call names one."""
        given = cast(Message, call) if isinstance(call, dict) else {}
        number, method = given.get("id"), given.get("method")
        parameters: Any = given.get("params") or {}
        if given.get("jsonrpc") != "2.0" or not isinstance(method, str):
            return rpc_error(None, INVALID_REQUEST, "Invalid request: jsonrpc and method are needed")
        if not isinstance(parameters, dict):
            return rpc_error(number, INVALID_PARAMETERS, "Params must be an object")
        options = cast(Message, parameters)
        try:
            result = await self._result(method, options, own)
        except FullError as full:
            return rpc_error(number, SERVER_ERROR, str(full), full.counts)
        except ValidationError as error:
            return rpc_error(number, INVALID_PARAMETERS, "Invalid params", problems(error))
        except GavelError as error:
            return rpc_error(number, INVALID_PARAMETERS, error.message)
        except Exception as error:
            logger.exception("the call %s failed", method)
            return rpc_error(number, INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        if result is None:
            return rpc_error(number, NO_METHOD, f"Method not found: {method}")
        return {"jsonrpc": "2.0", "id": number, "result": result}

    async def _result(self, method: str, options: Message, own: str | None) -> Message | None:
        named = str(options.get("session_id") or "")
        match method:
            case "openenv/session/create":
                return {"session_id": own or self._sessions.begin()}
            case "openenv/session/close" if named != own and not self._sessions.is_attached(named):
                await self._sessions.end(named)
                return {"session_id": named, "closed": True}
            case "openenv/session/close":
                raise GavelError("a session that a WebSocket has cannot be closed here")
            case "tools/list":
                return {"tools": await self._sessions.get(own or named).tools()}
            case "tools/call":
                action: Message = {"type": "call_tool", "tool_name": options.get("name")}
                action["arguments"] = options.get("arguments") or {}
                step = await self._sessions.get(own or named).step(action)
                return step["observation"]["result"]
            case _:
                return None


def problems(error: ValidationError) -> list[Message]:
    """What is wrong with a request, without what was sent."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"loc": list(each["loc"]), "msg": each["msg"], "type": each["type"]} for each in found]


def rpc_error(number: Any, code: int, message: str, data: Any = None) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message, "data": data}}
