"""Parses the body of a response into a reply with its text, its tokens and its cost. Prompt tokens include those of
the server's cache, read or written; completion tokens include those of reasoning, which xAI reports separately.

With `with_logprobs` the text is JSON, so that a cassette can keep it: {"text": "7", "tokens": [["7", [["7", -0.1], …]],
…]}: each sampled token with the likeliest in its place and their natural log-probabilities; None if none came.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gavel.llm.budget import Prices, cost, listed_cost
from gavel.llm.failures import CONTENT_FILTER
from gavel.llm.providers import load_litellm
from gavel.llm.types import Message, Reply, Usage, is_mapping

LOGPROBS = {"logprobs": True, "top_logprobs": 20}
"""Parameters that request log-probabilities; 20 is the default maximum of OpenAI and vLLM."""
WITHOUT_LOGPROBS = "name a server that does, such as vLLM, or take the mode groupwise (--mode)."


def read_response(model: str, body: Mapping[str, Any], messages: list[Message], prices: Prices) -> Reply:
    """The reply in the body of a response to `messages`. Tokens that the server did not count are counted here.

    Its cost comes from `prices`, from LiteLLM, or from its table.
    """
    choice: Mapping[str, Any] = body["choices"][0] if body["choices"] else {}
    message = dict(choice.get("message") or {})
    finish_reason = choice.get("finish_reason") or ""
    thoughts = message.get("reasoning_content") or message.get("reasoning")  # vLLM's name for it
    message["reasoning_content"] = None if finish_reason == "length" else thoughts  # truncated, it holds no answer
    text, repairs = read_message(message)
    if not text.strip():
        fields: object = message.get("provider_specific_fields")
        refusal = message.get("refusal") or (fields.get("refusal") if is_mapping(fields) else None)
        if refusal and isinstance(refusal, str):
            text, finish_reason = refusal, CONTENT_FILTER
    usage = read_usage(body.get("usage"))
    usage = replace(
        usage,
        prompt_tokens=usage.prompt_tokens or load_litellm().token_counter(model=model, messages=messages),
        completion_tokens=usage.completion_tokens or load_litellm().token_counter(model=model, text=text),
    )
    usd = cost(model, usage, prices)
    if usd is None:  # 0 = LiteLLM has no price; it takes reasoning for a part of the completion
        usd = (not usage.uncounted_reasoning and body.get("response_cost")) or listed_cost(model, usage)
    tokens, served_by = (usage.prompt_tokens, usage.completion_tokens), model_name(body.get("model"))
    cached = usage.cached_prompt_tokens
    return Reply(text, *tokens, usd, finish_reason, served_by, repairs=repairs, cached_prompt_tokens=cached)


def with_logprobs(reply: Reply, body: Mapping[str, Any]) -> Reply:
    """The reply in a response's body with its tokens; a refusal is left unchanged."""
    if reply.finish_reason == CONTENT_FILTER:
        return reply
    logprobs: dict[str, Any] = (body["choices"][0].get("logprobs") if body["choices"] else None) or {}
    content: list[dict[str, Any]] = logprobs.get("content") or []
    tokens = [
        [one["token"], [[top["token"], top["logprob"]] for top in one.get("top_logprobs") or ()]] for one in content
    ]
    return replace(reply, text=json.dumps({"text": reply.text, "tokens": tokens or None}, ensure_ascii=False))


def read_answer(answer: object) -> tuple[str, Counter[str]]:
    """The text that a callable returned, and its repairs.

    An answer is a text, an assistant's message, or the JSON object of the reply itself. Raises `TypeError` for others.
    """
    if isinstance(answer, str):
        return sendable(answer), Counter()
    if not is_mapping(answer):
        raise TypeError(f"it returned {type(answer).__name__}, not str, a message, or a dict as the schema has it")
    if answer.keys() & {"role", "content", "tool_calls", "function_call"}:
        return read_message(answer)
    return sendable(json.dumps(dict(answer), ensure_ascii=False, default=float)), Counter()  # NumPy's numbers, Decimal


def read_message(message: Mapping[str, Any]) -> tuple[str, Counter[str]]:
    """The text of an assistant's message, and the repairs needed to find it, by kind.

    A reply may come in content parts, as the arguments of a tool call, or as reasoning.
    """
    repairs: Counter[str] = Counter()
    text = message.get("content") or ""
    if not isinstance(text, str):
        given = (part.get("text") if is_mapping(part) else part for part in text)
        text = "".join(part for part in given if isinstance(part, str))
        repairs["content parts"] += 1
    functions = [call.get("function") for call in message.get("tool_calls") or ()]
    calls = [given for one in (*functions, message.get("function_call")) if one and (given := one.get("arguments"))]
    if calls:  # text before a call merely announces it
        text = "\n".join(given if isinstance(given, str) else json.dumps(given) for given in calls)
        repairs["tool call"] += len(calls)
    if not text.strip() and isinstance(reasoning := message.get("reasoning_content"), str):
        text = reasoning
        repairs["reasoning"] += 1
    return sendable(text), repairs


def is_json_alone(text: str) -> bool:
    """Whether a reply is one JSON value, with at most closed reasoning before it and a code fence around it."""
    answer = text.rpartition("</think>")[2].strip()
    try:
        json.loads(answer.removeprefix("```json").removeprefix("```").removesuffix("```"))
    except ValueError:
        return False
    return True


def sendable(text: str) -> str:
    """The text with surrogate halves joined, or replaced if unpaired: JSON may hold them, but no request can send them,
    and no database stores them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def model_name(reported: object) -> str:
    """The name of the model that answered; "" if the server reports none or something else."""
    return sendable(reported)[:200] if isinstance(reported, str) else ""


def read_usage(usage: object) -> Usage:
    """The usage in a response's body; all 0 if the server reports none."""

    def tokens(*path: str) -> int:
        found: object = usage
        for name in path:
            found = found.get(name) if is_mapping(found) else None
        return token_count(found)

    prompt, completion = tokens("prompt_tokens"), tokens("completion_tokens")
    reasoning = tokens("completion_tokens_details", "reasoning_tokens")
    apart = reasoning if tokens("total_tokens") == prompt + completion + reasoning else 0
    cached = min(tokens("prompt_tokens_details", "cached_tokens"), prompt)
    written = min(tokens("cache_creation_input_tokens"), prompt - cached)
    return Usage(prompt, completion + apart, cached, written, apart)


def token_count(reported: object) -> int:
    """A token count; 0 if the server reports none, or one that would use up every budget at once."""
    return reported if isinstance(reported, int) and 0 < reported <= 1_000_000_000 else 0
