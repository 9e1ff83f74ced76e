"""Converts request and response bodies of language models, and OpenAI's Responses items, to chat messages.

    read_request({"system": "You run a desk.", "messages": […]})  [{"role": "system", …}, …]
    read_response({"choices": [{"message": {…}}]})                Answers([[{"role": "assistant", …}]], {}, "")
    messages([{"type": "function_call", "call_id": "c1", …}])     [{"role": "assistant", "tool_calls": […]}]

OpenAI's chat completions and Responses, Anthropic, Gemini, Bedrock Converse. Reasoning becomes `reasoning_content` of
the message after it. Calls of OpenAI's server-side tools keep all their fields as arguments.
"""

from dataclasses import dataclass
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats.row import as_list, as_message, first_of, is_list, is_object
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
        return [*system(body.get("system")), *as_message(body["messages"], "user")]
    if "contents" in body:
        return [*gemini_system(body), *contents(body["contents"])]
    told = body.get("instructions")
    given = as_message(body.get("input", body.get("prompt", "")), "user")
    return [*([{"role": "system", "content": told}] if told else []), *given]


def tools(body: Message) -> list[Message] | None:
    """The tools that a request offers."""
    given = body.get("tools", body.get("functions"))
    config = body.get("toolConfig")
    return openai_tools(config["tools"] if given is None and is_object(config, "tools") else given)


def system(value: Any) -> list[Message]:
    """The top-level `system` text as a message."""
    return [{"role": "system", "content": value}] if value else []


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
        return _answers([[{"role": "assistant", "content": body["content"]}]], [body.get("stop_reason")])
    return Answers([], {}, problem(body.get("error"), UNREAD if choices else "no choices"))


UNREAD = "its choices hold neither message nor text"


def _answers(said: list[list[Any]], reasons: list[Any]) -> Answers:
    return Answers(said, {"status": "truncated"} if any(reason in _CUT for reason in reasons) else {})


def problem(error: Any, otherwise: str) -> str:
    """The code or type of an error, at any depth."""
    while is_object(error, "error"):
        error = error["error"]
    return str(first_of(error, "code", "type", "status") or otherwise) if is_object(error) else otherwise
