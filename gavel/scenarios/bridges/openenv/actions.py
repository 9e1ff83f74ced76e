"""The agent's tools, made of the schema of a server's actions.

    {"properties": {"message": {"type": "string"}}}       one tool, act(message)
    {"oneOf": [Move, Wait]}                               a tool for each alternative: move(…), wait(…)
    {"properties": {"tool_name": …, "arguments": …}}      the tools that the server lists, of MCP

`metadata`, which every action of OpenEnv has, is not shown.
"""

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, cast

from gavel.llm.types import Message

Form = Literal["action", "mcp", "gavel"]
GAVEL_ACTION = "GavelAction"
"""Title of the action of scenarios that Gavel serves."""
_HIDDEN = "metadata"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class ActionTool:
    """A tool whose arguments, together with `fixed`, are an action."""

    schema: Message
    fixed: Message


def form_of(schema: Message) -> Form:
    """What actions of this JSON schema are."""
    if schema.get("title") == GAVEL_ACTION:
        return "gavel"
    if _alternatives(schema):
        return "action"
    own = _own_properties(schema)
    return "mcp" if not own or {"tool_name", "arguments"} <= own.keys() else "action"


def text_field(schema: Message) -> str | None:
    """The name of the one field of an action, where that is a text."""
    own = _own_properties(schema)
    required = [name for name in cast("list[str]", schema.get("required") or []) if name in own] or list(own)
    if len(required) != 1 or own[required[0]].get("type") != "string" or "enum" in own[required[0]]:
        return None
    return required[0]


def action_tools(schema: Message) -> list[ActionTool]:
    """The tools of an environment whose actions have this JSON schema."""
    alternatives = _alternatives(schema)
    if not alternatives:
        return [_tool("act", schema, {}, schema)]
    found: list[ActionTool] = []
    for alternative in alternatives:
        own = _own_properties(alternative)
        fixed = {name: field["const"] for name, field in own.items() if "const" in field}
        name = next((str(value) for value in fixed.values()), str(alternative.get("title") or "act"))
        found.append(
            _tool(_plain(name, [tool.schema["function"]["name"] for tool in found]), alternative, fixed, schema)
        )
    return found


def mcp_tools(listed: list[Message]) -> dict[str, tuple[str, Message]]:
    """Tools that a server lists: by the name that the agent is shown, their own name and their OpenAI schema."""
    found: dict[str, tuple[str, Message]] = {}
    for tool in listed:
        name = tool.get("name")
        if not isinstance(name, str):
            continue
        parameters: Any = tool.get("input_schema") or tool.get("inputSchema") or {}
        shown = _plain(name, list(found))
        function: Message = {
            **{"name": shown, "description": str(tool.get("description") or "")},
            "parameters": {"type": "object", "properties": {}, **parameters},
        }
        found[shown] = name, {"type": "function", "function": function}
    return found


def _tool(name: str, schema: Message, fixed: Message, root: Message) -> ActionTool:
    properties = {key: value for key, value in _own_properties(schema).items() if key not in fixed}
    parameters: Message = {"type": "object", "properties": deepcopy(properties)}
    if required := [key for key in cast("list[str]", schema.get("required") or []) if key in properties]:
        parameters["required"] = required
    if definitions := root.get("$defs"):
        parameters["$defs"] = deepcopy(definitions)
    description = str(schema.get("description") or "Carry out one action in the environment.").strip()
    function: Message = {"name": name, "description": description, "parameters": parameters}
    return ActionTool({"type": "function", "function": function}, fixed)


def _own_properties(schema: Message) -> dict[str, Message]:
    properties: Any = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    fields = cast("dict[str, Any]", properties)
    return {name: value for name, value in fields.items() if name != _HIDDEN and isinstance(value, dict)}


def _alternatives(schema: Message) -> list[Message]:
    """What the action is one of, where it is one of several objects."""
    given: Any = schema.get("oneOf") or schema.get("anyOf") or ()
    found: list[Message] = []
    for each in cast("list[Any]", given):
        resolved = _resolved(each, schema)
        if isinstance(resolved, dict) and "properties" in resolved:
            found.append(cast(Message, resolved))
    return found


def _resolved(part: Any, root: Message) -> Any:
    match part:
        case {"$ref": str(reference)} if reference.startswith("#/"):
            found: Any = root
            for name in reference.removeprefix("#/").split("/"):
                found = cast(Message, found).get(name) if isinstance(found, dict) else None
            return found
        case _:
            return part


def _plain(name: str, taken: list[str]) -> str:
    """A name that every API takes, and that no other tool has."""
    plain = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME] or "tool"
    number, own = 2, plain
    while own in taken:
        own = f"{plain[: _LONGEST_NAME - 4]}_{number}"
        number += 1
    return own
