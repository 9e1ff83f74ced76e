"""What other clients call a sampled turn, as the OpenAI `Choice` or message dict that a trajectory keeps.

    as_item(litellm_choice)      Choice, with token ids taken out of provider_specific_fields
    as_item(completion)          its one Choice
    as_item(response)            Choice with the text, reasoning and calls of a response of the Responses API
    as_item(openai_message)      {"role": "assistant", "content": "…"}

Nothing is guessed: what is none of these stays as it is, and is refused by the validation of the trajectory.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from gavel.llm.types import Message

_EXACT = (
    "token_ids",
    "prompt_token_ids",
    "policy_version",
    "temperature",
    "continues_sampled",
    "sample_id",
    "token_logprobs",
)
"""Fields of a Gavel endpoint's choice that LiteLLM moves to `provider_specific_fields`."""


def as_item(value: Any) -> Any:
    """A `Choice`, a message dict, or the value itself if it is neither of another client's."""
    if isinstance(value, Choice):
        return value
    fields = _fields(value)
    if fields is None:
        return value
    match fields:
        case {"message": Mapping(), "finish_reason": _}:
            return _choice(fields)
        case {"choices": [_]} if "role" not in fields:
            return as_item(fields["choices"][0])
        case {"object": "response", "output": [*items]}:
            return _of_response(fields, [cast("Mapping[str, Any]", _fields(item)) for item in items])
        case {"role": str()} | {"type": str()}:
            return fields
        case _:
            held = ", ".join(fields) or "nothing"
            raise ValueError(f"a message needs a role, such as assistant; this one holds only {held}")


def _fields(value: Any) -> dict[str, Any] | None:
    """Of a mapping or of a pydantic model (LiteLLM's and OpenAI's are); None for all else."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if isinstance(value, BaseModel):
        dumped = value.model_dump(mode="json", warnings=False, exclude_none="role" in type(value).model_fields)
        return dumped
    return None


def _choice(fields: Mapping[str, Any]) -> Choice:
    """As tolerant as the OpenAI client: servers send choices (finish_reason "abort", a null log-prob) that the model's
    own validation would refuse, and a stored choice must be readable again."""
    kept: dict[str, Any] = dict(fields)
    specific: dict[str, Any] = kept.pop("provider_specific_fields", None) or {}
    for name in _EXACT:
        if kept.get(name) is None and specific.get(name) is not None:
            kept[name] = specific[name]
    message = {name: value for name, value in kept["message"].items() if name != "provider_specific_fields"}
    kept["message"] = message
    return Choice.construct(None, **kept)


def _of_response(fields: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Choice:
    """The turn that a response of OpenAI's Responses API says; its items carry no token ids of their own."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for item in items:
        match item:
            case {"type": "message", "content": [*parts]}:
                texts += [part.get("text") or part.get("refusal") or "" for part in parts]
            case {"type": "reasoning"}:
                thoughts += [part.get("text") or "" for part in item.get("content") or item.get("summary") or ()]
            case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
            case _:
                pass  # a server's own tool: no part of the assistant's message
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    cut = fields.get("status") == "incomplete"
    finish_reason = "length" if cut else "tool_calls" if calls else "stop"
    exact = {name: fields[name] for name in _EXACT[:3] if fields.get(name) is not None}
    return Choice.construct(None, index=0, finish_reason=finish_reason, message=message, logprobs=None, **exact)
