"""Bodies of requests to language models, and of their responses, in the forms of several vendors' interfaces.

    asked({"system": "You run a desk.", "messages": […]})       [{"role": "system", …}, …]
    answered({"choices": [{"message": {…}}]})                   Answers([[{"role": "assistant", …}]], {}, "")

OpenAI's chat completions and Responses, Anthropic, Gemini and Bedrock Converse.
"""

from dataclasses import dataclass
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import anthropic
from gavel.scenarios.formats.checks import as_message
from gavel.scenarios.formats.row import is_list, is_object
from gavel.scenarios.formats.tool_calls import tools as openai_tools

QUESTIONS = ("messages", "contents", "input", "prompt")
_SYSTEM = ("systemInstruction", "system_instruction")
_CUT = ("length", "max_tokens", "MAX_TOKENS", "incomplete")


@dataclass(frozen=True, slots=True)
class Answers:
    """What a response holds."""

    attempts: list[list[Any]]
    """The messages of each choice."""
    ended: dict[str, Any]
    """The status of an attempt that was cut off."""
    problem: str = ""
    """Why there is none."""


def is_request(body: Any) -> bool:
    return is_object(body, "|".join(QUESTIONS))


def asked(body: Message) -> list[Any]:
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
    given = next((body[name] for name in _SYSTEM if body.get(name)), None)
    if isinstance(given, str):
        return [{"role": "system", "content": given}]
    parts = given.get("parts") if is_object(given) else None
    parts = [parts] if is_object(parts) else parts
    texts = [part["text"] for part in parts or () if is_object(part, "text")]
    return [{"role": "system", "content": "\n".join(map(str, texts))}] if texts else []


def contents(given: Any) -> list[Any]:
    """Gemini's contents: a text, one content, or a list of contents, of which one without a role is the user's."""
    items = as_message(given, "user")
    return [{"role": "user", **item} if is_object(item, "parts") else item for item in items]


def answered(body: Any) -> Answers:
    """The attempts in the body of a response; why there is none, where it holds an error or something else."""
    if not is_object(body):
        return Answers([], {}, "no response")
    choices, candidates, output = body.get("choices"), body.get("candidates"), body.get("output")
    if is_list(choices) and choices and all(is_object(choice, "message") for choice in choices):
        return _answers(
            [[choice["message"]] for choice in choices], [choice.get("finish_reason") for choice in choices]
        )
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
    return Answers([], {}, problem(body.get("error"), "no choices"))


def _answers(said: list[list[Any]], reasons: list[Any]) -> Answers:
    return Answers(said, {"status": "truncated"} if any(reason in _CUT for reason in reasons) else {})


def problem(error: Any, otherwise: str) -> str:
    """The code or the type of an error, however deep it stands."""
    while is_object(error, "error"):
        error = error["error"]
    return (
        str(error.get("code") or error.get("type") or error.get("status") or otherwise)
        if is_object(error)
        else otherwise
    )
