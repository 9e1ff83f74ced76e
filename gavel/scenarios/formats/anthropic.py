"""Anthropic messages: blocks of text, thinking, tool use and tool results within a message, and `system` beside them.

    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look_up", "input": {"id": "7"}}]}
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "on its way"}]}

become an assistant message with `tool_calls` and a `tool` message. Thinking becomes `reasoning_content`. Further fields
of a block stay beside its call, its result or its text.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats.row import as_json, as_list, is_list, is_object, joined, rest_of

NAME = "Anthropic messages"
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_THOUGHTS = ("thinking", "redacted_thinking")
_CACHE = "cache_control"


def has_blocks(message: Message) -> bool:
    """Whether a message holds blocks that OpenAI's chat messages do not have."""
    return "role" in message and any(_is_foreign(each) for each in as_list(message.get("content")) if is_object(each))


def _is_foreign(block: Message) -> bool:
    kind = block.get("type")
    return (
        kind in (*_CALLS, *_THOUGHTS)
        or _is_result(block)
        or (kind == "image" and ("source" in block or "data" in block))
    )


def _is_result(block: Message) -> bool:
    return "tool_use_id" in block and str(block.get("type", "")).endswith("tool_result")


def system(value: Any) -> list[Message]:
    """The top-level `system` text as a message."""
    if not value:
        return []
    return [{"role": "system", "content": _content(value)}]


def messages(message: Message) -> list[Message]:
    """Converts one message to equivalent chat messages, in the same order."""
    content = message.get("content")
    if not is_list(content):
        return [message]
    known = as_list(message.get("tool_calls"))
    rest = rest_of(message, "content", *(["tool_calls"] if is_list(message.get("tool_calls")) else []))
    found: list[Message] = []
    blocks: list[Any] = []
    calls = known
    for block in content:
        if not (is_object(block) and _is_result(block)):
            blocks.append(block)
            continue
        found += [*_build_message(blocks, rest, calls, known), _result(block)]
        blocks, calls = [], []
    found += _build_message(blocks, rest, calls, known)
    if found and all(each.get("role") == "tool" for each in found):  # there is no message to hold the rest
        found[0] = {**rest, **found[0]}
    return found or [{**rest, "content": ""}]


def _build_message(blocks: list[Any], rest: Message, calls: list[Any], known: list[Any]) -> list[Message]:
    """The message of the blocks between two results, or none if they are empty. `known`: calls that exist already."""
    parts: list[Any] = []
    thoughts: list[str] = []
    calls = list(calls)
    for block in blocks:
        kind = block.get("type") if is_object(block) else None
        if kind in _THOUGHTS:
            thoughts.append(str(block.get("thinking") or "[redacted]"))
        elif kind not in _CALLS:
            parts.append(block)
        elif not any(_is_same_call(block, call) for call in known):
            function = {"name": block.get("name", ""), "arguments": as_json(block.get("input"))}
            more = rest_of(block, "type", "id", "name", "input", "caller", _CACHE)
            calls.append({**more, "id": block.get("id"), "type": "function", "function": function})
    if not (parts or calls or thoughts):
        return []
    said: Message = {**rest, "content": _content(parts) if parts else None}
    if thoughts:
        said["reasoning_content"] = "\n".join(thoughts)
    return [{**said, "tool_calls": calls} if calls else said]


def _is_same_call(block: Message, call: Any) -> bool:
    """Whether a call of `tool_calls` is that of a block: LangChain writes both, and no input yet while streaming."""
    if not is_object(call, "id", "function") or not is_object(call["function"], "name") or not block.get("id"):
        return False
    function, given = call["function"], block.get("input")
    if (call["id"], function["name"]) != (block["id"], block.get("name", "")):
        return False
    try:
        return not given or json.loads(function.get("arguments") or "{}") == given
    except (ValueError, TypeError):
        return False


def _result(block: Message) -> Message:
    more = rest_of(block, "type", "tool_use_id", "content", "caller", _CACHE)
    if not more.get("is_error"):
        more.pop("is_error", None)
    content = _content(block.get("content", ""))
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": "" if content is None else content, **more}


def _content(content: Any) -> Any:
    """The text if there is nothing else, or the parts, with images in OpenAI's form."""
    if not isinstance(content, list):
        return content
    return joined([_part(part) for part in cast(list[Any], content)])


def _part(part: Any) -> Any:
    match part:
        case {"type": "image", "source": {"type": "base64", "media_type": media, "data": data, **other}, **rest} if (
            not other
        ):
            return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}, **rest}
        case {"type": "image", "source": {"type": "url", "url": url, **other}, **rest} if not other:
            return {"type": "image_url", "image_url": {"url": url}, **rest}
        case {"type": "image", "data": str() as data, "mimeType": media, **rest}:  # of the Model Context Protocol
            return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}, **rest}
        case {"type": "text", **rest}:
            return {"type": "text", **rest_of(rest, _CACHE)}
        case _:
            return part


Blocks = Iterator[Message]
_ROLES = {"model": "assistant", "bot": "assistant", "function": "user"}
_BEDROCK = ("text", "toolUse", "toolResult", "reasoningContent", "cachePoint", "image", "document", "video")


def with_blocks(message: Message) -> tuple[list[Message], str] | None:
    """Converts to messages with Anthropic's blocks, and names the source form; None if it has no such form."""
    parts: Any
    parts, content = message.get("parts"), message.get("content")
    if isinstance(parts, str | dict):
        parts = [{"text": parts} if isinstance(parts, str) else parts]
    if is_list(parts) and all(map(is_object, parts)) and not content:
        if parts and all("part_kind" in part for part in parts):
            return _of_pydantic_ai(parts), "Pydantic AI messages"
        if parts and all("type" in part for part in parts):
            return [_with(message, parts, _convert_typed)], "messages with parts"
        return [_with(message, parts, _convert_gemini)], "Gemini contents"
    if is_list(message.get("toolInvocations")):
        return [_with_invocations(message)], "AI SDK messages"
    if not is_list(content) or not all(map(is_object, content)):
        return None
    if any(str(part.get("type")) in ("tool-call", "tool-result") for part in content):
        return [_with(message, content, _convert_typed)], "AI SDK messages"
    if content and all("type" not in part and any(name in part for name in _BEDROCK) for part in content):
        return [_with(message, content, _convert_bedrock)], "Bedrock Converse messages"
    return None


def _with(message: Message, parts: Iterable[Any], blocks: Callable[[Message], Blocks]) -> Message:
    rest = {name: value for name, value in message.items() if name not in ("parts", "content")}
    role = {"role": _ROLES.get(rest["role"], rest["role"])} if isinstance(rest.get("role"), str) else {}
    return {**rest, **role, "content": [block for part in parts for block in blocks(part)]}


def _with_invocations(message: Message) -> Message:
    """An AI SDK 4 message: tool results precede the text that was written with them."""
    rest = {name: value for name, value in message.items() if name not in ("toolInvocations", "parts", "content")}
    found = [block for call in message["toolInvocations"] if is_object(call) for block in _invocation(call)]
    text = message.get("content")
    return {**rest, "content": [*found, *([{"type": "text", "text": text}] if text else [])]}


def _call(identity: Any, name: Any, arguments: Any) -> Message:
    return {"type": "tool_use", "id": identity, "name": str(name or ""), "input": arguments}


def _tool_result(identity: Any, content: Any, *, name: Any = None, failed: bool = False) -> Message:
    named = {"name": name} if name else {}
    error = {"is_error": True} if failed else {}
    return {"type": "tool_result", "tool_use_id": identity, "content": _plain(content), **named, **error}


def _plain(content: Any) -> Any:
    """The text, or the JSON of anything else."""
    return content if isinstance(content, str) else "" if content is None else as_json(content)


_GEMINI = {
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
    "executableCode": "executable_code",
    "codeExecutionResult": "code_execution_result",
}


def _convert_gemini(part: Message) -> Blocks:
    """Converts a Gemini part: one value under a name in camel or snake case; its other fields are kept."""
    given = {_GEMINI.get(name, name): value for name, value in part.items() if value is not None}
    thought = given.pop("thought", False)
    kinds = [name for name in given if name in ("text", *_GEMINI.values())]
    kind = kinds[0] if len(kinds) == 1 else ""
    value = given.pop(kind, None)
    rest = {name: more for name, more in given.items() if name not in ("thoughtSignature", "thought_signature")}
    if kind == "text" and isinstance(value, str):
        yield {"type": "thinking", "thinking": value} if thought else {"type": "text", "text": value, **rest}
    elif not is_object(value):
        yield {"type": "part", **part} if kinds[1:] else part
    elif kind == "function_call":
        more = rest_of(value, "id", "name", "args")
        yield _call(value.get("id"), value.get("name"), value.get("args")) | more | rest
    elif kind == "function_response":
        found = _tool_result(value.get("id"), value.get("response"), name=value.get("name"))
        if is_list(parts := value.get("parts")):
            found["content"] = [{"type": "text", "text": found["content"]}]
            found["content"] += [block for each in parts if is_object(each) for block in _convert_gemini(each)]
        yield found | rest_of(value, "id", "name", "response", "parts") | rest
    elif kind == "inline_data" and str(media := value.get("mimeType", value.get("mime_type"))).startswith("image/"):
        source = {"type": "base64", "media_type": media, "data": value.get("data")}
        yield {"type": "image", "source": source} | rest_of(value, "mimeType", "mime_type", "data") | rest
    elif kind == "executable_code":
        yield _call(None, kind, value) | rest
    elif kind == "code_execution_result":
        yield _tool_result(None, value, name="executable_code") | rest
    else:
        yield part


def _convert_bedrock(part: Message) -> Blocks:
    match part:
        case {"text": str() as text, **rest}:
            yield {"type": "text", "text": text, **rest}
        case {"toolUse": {"toolUseId": identity, "name": name, **call}}:
            yield _call(identity, name, call.get("input"))
        case {"toolResult": {"toolUseId": identity, **result}}:
            content: Any = result.get("content")
            parts = [_bedrock_result(each) for each in content] if is_list(content) else _plain(content)
            failed = result.get("status") == "error"
            yield _tool_result(identity, "", failed=failed) | {"content": parts}
        case {"reasoningContent": {"reasoningText": {"text": str() as text}}}:
            yield {"type": "thinking", "thinking": text}
        case {"reasoningContent": _}:
            yield {"type": "redacted_thinking"}
        case {"image": {"format": str() as form, "source": {"bytes": str() as data}}}:
            yield {"type": "image", "source": {"type": "base64", "media_type": f"image/{form}", "data": data}}
        case {"cachePoint": _}:
            return
        case _:
            yield part


def _bedrock_result(part: Any) -> Any:
    if is_object(part, "json"):
        return {"type": "text", "text": as_json(part["json"])}
    return next(_convert_bedrock(part), part) if is_object(part) else part


def _convert_typed(part: Message) -> Blocks:
    """Converts parts with a type field, of the AI SDK and of OpenTelemetry's conventions."""
    kind = str(part.get("type"))
    text = part.get("text", part.get("content"))
    if kind in ("step-start", "step-finish", "source-url", "source-document"):
        return
    if kind in ("text", "reasoning") and isinstance(text, str):
        name = "thinking" if kind == "reasoning" else "text"
        yield {"type": name, name: text}
    elif kind == "tool-invocation" and is_object(call := part.get("toolInvocation")):
        yield from _invocation(call)
    elif kind == "tool_call":
        yield _call(part.get("id"), part.get("name"), part.get("arguments"))
    elif kind == "tool_call_response":
        yield _tool_result(part.get("id"), part.get("response", part.get("result")))
    elif kind == "tool-result":
        output = part.get("output", part.get("result"))
        given = output["value"] if is_object(output, "type", "value") else output
        failed = is_object(output) and str(output.get("type")).startswith("error")
        yield _tool_result(part.get("toolCallId"), given, name=part.get("toolName"), failed=failed)
    elif "toolCallId" in part:
        name = part.get("toolName") or kind.removeprefix("tool-")
        yield from _invocation({"toolName": name, **part})
    else:
        yield part


def _invocation(call: Message) -> Blocks:
    """A call, with its result or error if it has one already."""
    yield _call(call.get("toolCallId"), call.get("toolName"), call.get("input", call.get("args")))
    if (error := call.get("errorText")) is not None:
        yield _tool_result(call.get("toolCallId"), error, failed=True)
    elif (output := call.get("output", call.get("result"))) is not None:
        yield _tool_result(call.get("toolCallId"), output)


_PYDANTIC_ROLES = {"system-prompt": "system", "user-prompt": "user", "tool-return": "user", "retry-prompt": "user"}


def _of_pydantic_ai(parts: list[Any]) -> list[Message]:
    """One message per run of parts with one role: a request may hold the system's prompt and the user's."""
    found: list[Message] = []
    for part in parts:
        role = _PYDANTIC_ROLES.get(str(part["part_kind"]), "assistant")
        if not found or found[-1]["role"] != role:
            found.append({"role": role, "content": []})
        found[-1]["content"] += _pydantic_ai(part)
    return found


def _pydantic_ai(part: Message) -> Blocks:
    kind, content = part["part_kind"], part.get("content")
    if kind in ("system-prompt", "user-prompt", "text") and isinstance(content, str):
        yield {"type": "text", "text": content}
    elif kind == "thinking":
        yield {"type": "thinking", "thinking": str(content or "")}
    elif kind in ("tool-call", "builtin-tool-call"):
        yield _call(part.get("tool_call_id"), part.get("tool_name"), part.get("args"))
    elif kind in ("tool-return", "builtin-tool-return", "retry-prompt") and part.get("tool_name"):
        yield _tool_result(part.get("tool_call_id"), content, name=part["tool_name"], failed=kind == "retry-prompt")
    else:
        yield part
