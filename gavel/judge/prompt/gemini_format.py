"""Messages of the Gemini API -> messages whose content is blocks that `provider_formats.py` reads.

    {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}
    {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}

Names in camel case and in snake case are the same. A part of another form stays as it is: it is unseen content.
"""

from collections.abc import Mapping
from typing import Any, cast

from gavel.judge.prompt.plain_json import plain_json
from gavel.llm.types import Message

_KINDS = {
    "text": "text",
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
    "executableCode": "executable_code",
    "codeExecutionResult": "code_execution_result",
}
_SNAKE = {name: name for name in _KINDS.values()} | _KINDS


def from_gemini(message: Message) -> Message:
    """The message with the role `assistant` for `model`, and with content blocks for `parts`."""
    if "parts" not in message and message.get("role") != "model":
        return message
    fields = dict(message)
    if fields.get("role") == "model":
        fields["role"] = "assistant"
    parts = fields.get("parts")
    if not isinstance(parts, list | dict | str) or fields.get("content"):
        return fields
    del fields["parts"]
    given: list[Any] = cast("list[Any]", parts) if isinstance(parts, list) else [parts]
    blocks = [_block(part) for part in given]
    fields["content"] = blocks
    if fields.get("role") in ("function", "tool") and any(_is_result(block) for block in blocks):
        fields["role"] = "user"
    return fields


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and cast("dict[str, Any]", block).get("type") == "tool_result"


def _block(part: Any) -> Any:
    if not isinstance(part, dict) or "type" in part:
        return cast("Any", part)
    given = {key: value for key, value in cast("dict[str, Any]", part).items() if value is not None}
    kinds = [key for key in given if key in _SNAKE]
    if len(kinds) != 1:
        return {"type": "part", "payload": given}
    value = given.pop(kinds[0])
    if given.pop("thought", False) and kinds == ["text"]:
        return {"type": "thinking"}
    block = _typed_block(_SNAKE[kinds[0]], value)
    if block is None or block.keys() & given.keys():
        return {"type": "part", "payload": cast("Any", part)}
    return {**block, **given}


def _typed_block(kind: str, value: Any) -> dict[str, Any] | None:
    """The block for a part's value; None if it is malformed."""
    if kind == "text":
        return {"type": "text", "text": value} if isinstance(value, str) else None
    if not isinstance(value, dict):
        return None
    fields = {key: each for key, each in cast("dict[str, Any]", value).items() if each is not None}
    match kind:
        case "function_call":
            call = {"id": fields.pop("id", None), "name": fields.pop("name", ""), "input": fields.pop("args", {})}
            return {"type": "tool_use", **call, **_more("functionCall", fields)}
        case "function_response":
            parts: Any = fields.pop("parts", None)
            content = [{"type": "text", "text": plain_json(fields.pop("response", ""))}, *_result_parts(parts)]
            result = {"tool_use_id": fields.pop("id", None), "name": fields.pop("name", None)}
            return {"type": "tool_result", "content": content, **result, **_more("functionResponse", fields)}
        case "executable_code":
            return {"type": "server_tool_use", "name": kind, "input": fields}
        case "code_execution_result":
            content = [{"type": "text", "text": plain_json(fields)}]
            return {"type": "tool_result", "name": "executable_code", "content": content}
        case _:
            return _data_block(kind, fields)


def _result_parts(parts: Any) -> list[Any]:
    return [_block(part) for part in cast("list[Any]", parts)] if isinstance(parts, list) else []


def _data_block(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """An image for `inline_data` of an image; unseen content for everything else."""
    media: Any = fields.pop("mimeType", fields.pop("mime_type", None))
    if kind == "inline_data" and isinstance(media, str) and media.startswith("image/"):
        return {"type": "image", "data": fields.pop("data", None), "mimeType": media, **_more("inlineData", fields)}
    major = media.partition("/")[0] if isinstance(media, str) else ""
    return {"type": major if major in ("audio", "image", "video") else "file", "mimeType": media, "file": fields}


def _more(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of a value, under its name."""
    return {name: fields} if fields else {}
