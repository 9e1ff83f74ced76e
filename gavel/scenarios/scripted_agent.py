"""Agents without a model, which show how a scenario plays: one uses every tool once, the other only answers.

Arguments are examples that the tools' schemas allow; a text is the number that the user names, where there is one.
"""

import json
import re
from typing import Any, cast

from gavel.llm.message_parts import text_of
from gavel.llm.types import Message
from gavel.scenarios.function_model import ChatRequest, FunctionModel

_DEPTH = 6
"""Of an example for a schema that contains itself."""
_WITH_DIGIT = re.compile(r"[\w-]*\d[\w-]*")


def tool_user() -> FunctionModel:
    """Calls one tool a turn, each once, and then answers."""
    return FunctionModel("scripted/tool-user", _use_next)


def talker() -> FunctionModel:
    """Calls no tool."""
    return FunctionModel("scripted/talker", _answer)


async def _use_next(request: ChatRequest) -> Message:
    used = sum(message.get("role") == "tool" for message in request.messages)
    if used >= len(request.tools):
        return {"content": "I have used every tool that I have."}
    function = request.tools[used]["function"]
    said = " ".join(text_of(message) for message in request.messages if message.get("role") == "user")
    named = _WITH_DIGIT.search(said)
    arguments = json.dumps(example(function.get("parameters") or {}, text=named[0] if named else "example"))
    call = {"id": f"call_{used}", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"content": "", "tool_calls": [call]}


async def _answer(request: ChatRequest) -> Message:
    return {"content": "That is all I can do."}


def example(schema: Any, text: str = "example") -> Any:
    """A value that a JSON schema allows, as far as types, enumerations and bounds say."""
    return _example(schema, schema, text, _DEPTH)


def _example(schema: Any, root: Any, text: str, depth: int) -> Any:
    if not isinstance(schema, dict) or depth == 0:
        return None
    given = cast("dict[str, Any]", schema)

    def nested(part: Any) -> Any:
        return _example(part, root, text, depth - 1)

    if "$ref" in given:
        return nested(_resolved(given["$ref"], root))
    for key in ("const", "default"):
        if key in given:
            return given[key]
    for key in ("examples", "enum"):
        if given.get(key):
            return given[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if given.get(key):
            return nested(given[key][0])
    match _kind(given):
        case "integer" | "number":
            return given.get("minimum", given.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return False
        case "array":
            return [nested(given.get("items")) for _ in range(given.get("minItems", 0))]
        case "string":
            return text.ljust(given.get("minLength", 0), "x")[: given.get("maxLength")]
        case "null":
            return None
        case _:
            required: list[str] = given.get("required") or []
            properties: dict[str, Any] = given.get("properties") or {}
            return {name: nested(properties.get(name)) for name in required}


def _kind(schema: dict[str, Any]) -> str | None:
    kinds: str | list[str] | None = schema.get("type")
    return kinds[0] if isinstance(kinds, list) and kinds else cast("str | None", kinds)


def _resolved(reference: str, root: Any) -> Any:
    found = root
    for part in reference.removeprefix("#/").split("/"):
        found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
    return found
