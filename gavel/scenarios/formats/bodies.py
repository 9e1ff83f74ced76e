"""Converts request and response bodies of language models, and OpenAI's Responses items, to chat messages.

    read_request({"system": "You run a desk.", "messages": […]})  [{"role": "system", …}, …]
    read_response({"choices": [{"message": {…}}]})                Answers([[{"role": "assistant", …}]], {}, "")
    messages([{"type": "function_call", "call_id": "c1", …}])     [{"role": "assistant", "tool_calls": […]}]

OpenAI's chat completions and Responses, Anthropic, Gemini, Bedrock Converse. Reasoning becomes `reasoning_content` of
the message after it. Calls of OpenAI's server-side tools keep all their fields as arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats import anthropic
from gavel.scenarios.formats.row import as_json, as_list, as_message, first_of, is_list, is_object, joined, rest_of
from gavel.scenarios.formats.row import tools as openai_tools

QUESTIONS = ("messages", "contents", "input", "prompt")
_SYSTEM = ("systemInstruction", "system_instruction")
_CUT = ("length", "max_tokens", "MAX_TOKENS", "incomplete")


@dataclass(frozen=True, slots=True)
class Answers:
    """The attempts in a response."""

    attempts: list[list[Any]]
    """The messages of each choice."""
    ended: dict[str, Any]
    """Status of a truncated attempt."""
    problem: str = ""
    """Reason why there is no attempt."""


def is_request(body: Any) -> bool:
    return is_object(body, "|".join(QUESTIONS))


def read_request(body: Message) -> list[Any]:
    """The messages of a request."""
    if "messages" in body:
        return [*anthropic.system(body.get("system")), *as_message(body["messages"], "user")]
    if "contents" in body:
        return [*gemini_system(body), *contents(body["contents"])]
    system = body.get("instructions")
    given = as_message(body.get("input", body.get("prompt", "")), "user")
    return [*([{"role": "system", "content": system}] if system else []), *given]


def tools(body: Message) -> list[Message] | None:
    """The tools that a request offers."""
    given = body.get("tools", body.get("functions"))
    if given is None and is_object(config := body.get("toolConfig"), "tools"):
        given = config["tools"]
    if not is_list(given):
        return openai_tools(given)
    flat: list[Any] = []
    for each in given:
        declared = each.get("functionDeclarations", each.get("function_declarations")) if is_object(each) else None
        spec = each.get("toolSpec") if is_object(each) else None
        if is_list(declared):
            flat += declared
        elif is_object(spec):
            schema = spec.get("inputSchema")
            flat.append({**spec, "input_schema": schema.get("json") if is_object(schema) else schema})
        else:
            flat.append(each)
    return openai_tools(flat)


def gemini_system(body: Message) -> list[Message]:
    """Gemini's system instruction as a message."""
    given = first_of(body, *_SYSTEM)
    parts = [{"text": given}] if isinstance(given, str) else given.get("parts") if is_object(given) else []
    parts = [parts] if is_object(parts) else as_list(parts)
    texts = [str(part["text"]) for part in parts if is_object(part, "text")]
    return [{"role": "system", "content": "\n".join(texts)}] if texts else []


def contents(given: Any) -> list[Any]:
    """The messages of Gemini's contents: a text, one content, or a list; a content without a role is the user's."""
    items = as_message(given, "user")
    return [{"role": "user", **item} if is_object(item, "parts") else item for item in items]


def read_response(body: Any) -> Answers:
    """The attempts in a response body, or the reason why there is none: an error, or an unknown form."""
    if not is_object(body):
        return Answers([], {}, "no response")
    choices, candidates, output = body.get("choices"), body.get("candidates"), body.get("output")
    if is_list(choices) and choices and all(is_object(choice, "message|text") for choice in choices):
        said = [as_message(choice.get("message", choice.get("text")), "assistant") for choice in choices]
        return _answers(said, [choice.get("finish_reason") for choice in choices])
    if is_list(candidates) and candidates and all(is_object(each, "content") for each in candidates):
        said = [[{"role": "model", **each["content"]}] for each in candidates]
        return _answers(said, [each.get("finishReason", each.get("finish_reason")) for each in candidates])
    if is_list(output) and output:
        return _answers([output], [body.get("status")])
    if is_object(output, "message"):
        return _answers([[output["message"]]], [body.get("stopReason")])
    if is_list(body.get("content")) and not body.get("error"):
        said = anthropic.messages({"role": "assistant", "content": body["content"]})
        return _answers([list[Any](said)], [body.get("stop_reason")])
    return Answers([], {}, problem(body.get("error"), UNREAD if choices else "no choices"))


UNREAD = "its choices hold neither message nor text"


def _answers(said: list[list[Any]], reasons: list[Any]) -> Answers:
    return Answers(said, {"status": "truncated"} if any(reason in _CUT for reason in reasons) else {})


def problem(error: Any, otherwise: str) -> str:
    """The code or type of an error, at any depth."""
    while is_object(error, "error"):
        error = error["error"]
    return str(first_of(error, "code", "type", "status") or otherwise) if is_object(error) else otherwise


NAME = "OpenAI Responses items"
_CALLS = ("function_call", "custom_tool_call", "mcp_call")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ENVELOPE = ("type", "id", "status", "call_id", "role", "phase")
_OUTPUTS = ("output", "result", "results", "outputs")


def is_item(fields: Message) -> bool:
    """Whether it is a Responses item that is no chat message."""
    kind = fields.get("type")
    if kind == "message":
        return "role" in fields
    if "role" in fields:
        return any(is_object(part) and part.get("type") in _TEXTS[:2] for part in as_list(fields.get("content")))
    return isinstance(kind, str) and (
        kind in ("reasoning", "item_reference", "compaction", "mcp_list_tools")
        or kind.endswith(("_call", "_call_output", "_approval_request", "_approval_response"))
    )


def is_plain(fields: Message) -> bool:
    """Whether it is a text-only message, as it may stand among items."""
    return fields.keys() == {"role", "content"} and isinstance(fields["content"], str)


def messages(items: Sequence[Message]) -> list[Message]:
    """Converts items to chat messages; the assistant's text and calls of one turn become one message."""
    found: list[Message] = []
    thoughts: list[str] = []
    for item in items:
        kind = str(item.get("type") or "message") if "role" not in item else "message"
        if kind == "reasoning":
            parts = as_list(item.get("content")) or as_list(item.get("summary"))
            thoughts += [str(part["text"]) for part in parts if is_object(part, "text")]
            continue
        if kind.endswith("_call_output"):
            result = {"tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}
            found.append({"role": "tool", **result, **_rest(item, "output")})
            continue
        if kind.endswith("_call"):
            turn = _turn(found, thoughts)
            turn.setdefault("tool_calls", []).append(_call(item, kind))
            output = next((item[name] for name in _OUTPUTS if item.get(name) is not None), None)
            failed = kind == "mcp_call" and output is None and item.get("error") is not None
            if kind not in _CALLS[:2] and (output is not None or failed):
                content = _content(item["error"] if failed else output)
                if kind == "image_generation_call" and isinstance(output, str):
                    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{output}"}}]
                result = {"tool_call_id": turn["tool_calls"][-1]["id"], "content": content}
                found.append({"role": "tool", **result, **({"is_error": True} if failed else {})})
            continue
        content: Any
        content, rest = ([item], {}) if kind != "message" else (_content(item.get("content")), _rest(item, "content"))
        if kind == "message" and item.get("role") != "assistant":
            found.append({"role": item["role"], "content": content, **rest})
            continue
        turn = _turn(found, thoughts)
        if turn["content"] is not None or "tool_calls" in turn:
            found.append(turn := {"role": "assistant", "content": None})
        turn |= {**rest, "content": content}
    if thoughts:
        _turn(found, thoughts)
    return found


def _turn(found: list[Message], thoughts: list[str]) -> Message:
    """The assistant's current message; a new one after any other role's message, and with new thoughts."""
    if thoughts or not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
        if thoughts:
            found[-1]["reasoning_content"] = "\n".join(thoughts)
            thoughts.clear()
    return found[-1]


def _call(item: Message, kind: str) -> Message:
    identity = item.get("call_id") or item.get("id") or ""
    name, arguments, rest = kind.removesuffix("_call"), _rest(item, *_OUTPUTS), {}
    if kind in _CALLS:
        used = ("output", "error") if kind == "mcp_call" else ()
        name, arguments = item.get("name", ""), item.get("arguments", item.get("input"))
        rest = _rest(item, "name", "arguments" if "arguments" in item else "input", *used)
    return {**rest, "id": identity, "type": "function", "function": {"name": name, "arguments": as_json(arguments)}}


def _rest(item: Message, *used: str) -> Message:
    return rest_of(item, *_ENVELOPE, *used)


def _content(content: Any) -> Any:
    """The text if there is nothing else, or the parts, with images in OpenAI's form."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return [_part(content)] if is_object(content, "type") else as_json(content)
    return joined([_part(part) for part in cast(list[Any], content)]) or ""


def _part(part: Any) -> Any:
    match part:
        case {"type": kind, "text": str(), **rest} if kind in _TEXTS:
            return {"type": "text", "text": part["text"]} | {name: value for name, value in rest.items() if value}
        case {"type": "input_image" | "computer_screenshot", "image_url": str() as url, **rest}:
            return {"type": "image_url", "image_url": {"url": url}, **rest}
        case _:
            return part
