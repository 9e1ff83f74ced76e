"""Tool calls and tool schemas -> OpenAI's form, from the forms that other programs keep them in."""

import json
from typing import Any, cast

from gavel.llm.types import Message


def is_foreign(call: Any) -> bool:
    """Whether a tool call must be rewritten to have OpenAI's form."""
    if isinstance(call, str):
        return _object(call) is not None
    if not isinstance(call, dict):
        return False
    body = cast(Message, call).get("function")
    if isinstance(body, dict):
        return not isinstance(cast(Message, body).get("arguments", ""), str)
    return "custom" not in call and ("name" in call or isinstance(body, str))


def tool_call(call: Any) -> Any:
    """A tool call in OpenAI's form: other programs keep it flat, with arguments as an object, or as JSON text."""
    if isinstance(call, str):
        return tool_call(found) if (found := _object(call)) is not None else call
    if not is_foreign(call):
        return call
    fields = cast(Message, call)
    body = fields.get("function")
    if isinstance(body, dict):
        function = cast(Message, body)
        return {**fields, "function": {**function, "arguments": as_json(function.get("arguments"))}}
    name = body if isinstance(body, str) else fields["name"]
    arguments = fields.get("arguments", fields.get("args", fields.get("input")))
    extra = {k: v for k, v in fields.items() if k not in ("name", "arguments", "args", "input", "function", "type")}
    return {**extra, "type": "function", "function": {"name": name, "arguments": as_json(arguments)}}


def as_json(arguments: Any) -> str:
    """Arguments as the JSON text that OpenAI's calls carry."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)


def _object(text: str) -> Message | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(Message, value) if isinstance(value, dict) else None


def tools(value: Any) -> list[Message] | None:
    """Tool schemas in OpenAI's form, from a list, its JSON text, Anthropic's or Responses' flat form; None = none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, dict):
        value = [{"name": name, **schema} for name, schema in cast(dict[str, Message], value).items()]
    if not isinstance(value, list) or not value:
        return cast("list[Message] | None", value) or None
    return [_tool(each) for each in cast(list[Any], value)]


def _tool(value: Any) -> Any:
    if isinstance(value, str):
        value = _object(value) or value
    if not isinstance(value, dict) or "function" in value or "name" not in value:
        return cast(Any, value)
    fields = cast(Message, value)
    if fields.get("type", "function") not in ("function", "custom"):
        return fields  # a tool that the vendor runs
    parameters = fields.get("parameters", fields.get("input_schema"))
    function = {"name": fields["name"], "description": fields.get("description"), "parameters": parameters}
    return {"type": "function", "function": {name: each for name, each in function.items() if each is not None}}
