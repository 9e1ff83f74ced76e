"""Decision models: score questions about a text, answered in one pass with probabilities instead of text.

    questions = [score_question("W7QX", "How good is it?", ["bad", "good"])]
    reply = await decide("openai/…", messages, {"questions": questions}, {}, {}, 60)
    reply.text      # {"answers": [{"name": "W7QX", "probabilities": [0.2, 0.8]}]}

LiteLLM (1.106 and newer) translates to each provider's wire: OpenAI's `/v1/decisions`, the System One form of
`hosted_vllm/…` and others. An unanswered question has no probabilities.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import openai

from gavel.llm.budget import Prices, cost
from gavel.llm.errors import LlmError, PermanentError
from gavel.llm.providers import load_litellm, time_limit
from gavel.llm.response import model_name, token_count
from gavel.llm.types import Message, Reply, Schema, Usage

MOST_QUESTIONS, MOST_LEVELS = 128, 10
"""Max questions of a request, and max levels of a question."""
EXPECTED_COMPLETION = 1000
"""Upper estimate of the billed completion tokens."""


def score_question(name: str, instructions: str, levels: Sequence[str]) -> dict[str, Any]:
    """A question for a level; levels are ordered from the lowest to the highest."""
    return {"type": "score", "name": name, "instructions": instructions, "levels": [{"label": one} for one in levels]}


PROBE: Schema = {"questions": [score_question("ready", "Is the service reachable?", ["no", "yes"])]}


async def decide(
    model: str, messages: Sequence[Message], schema: Schema, params: Mapping[str, Any], prices: Prices, seconds: float
) -> Reply:
    """Answers `schema["questions"]` about the text of `messages`, in the form above.

    Raises `LlmError` if LiteLLM does not support decisions, or not with this provider, and the errors of
    `litellm.adecisions`, such as a timeout after `seconds`.
    """
    ask = getattr(load_litellm(params.get("api_base") or params.get("base_url")), "adecisions", None)
    if ask is None:
        raise LlmError("this LiteLLM cannot ask decision models.", "Install a newer one: pip install 'litellm>=1.106'.")
    options = {"timeout": seconds, "max_retries": 0, "num_retries": 0, **params}
    shown = [{"role": "user", "content": _as_input(message["content"])} for message in messages]
    try:
        async with time_limit(model, seconds):
            response = await ask(model=model, input=shown, questions=schema["questions"], **options)
    except openai.BadRequestError as error:
        if "Unknown Decisions provider" in str(error):  # LiteLLM sends no request then
            raise PermanentError(
                f"{model} is no decision model: {error}", "Name one of these providers', or take the mode groupwise."
            ) from error
        raise
    prompt, completion = token_count(response.usage.input_tokens), token_count(response.usage.output_tokens)
    usd = cost(model, Usage(prompt, completion), prices)
    if usd is None:
        usd = response.hidden_params.get("response_cost") or None  # 0 = LiteLLM has no price
    return Reply(_answers(response), prompt, completion, usd, "stop", model_name(response.model))


def _answers(response: Any) -> str:
    """The answers as JSON; a refusal, or an answer without a score, has no probabilities."""
    answers: list[dict[str, Any]] = []
    for answer in response.answers:
        probabilities: list[float | None] | None = None
        if answer.type == "score":
            levels = sorted(answer.probabilities, key=lambda level: level.value)
            probabilities = [level.probability if math.isfinite(level.probability) else None for level in levels]
        answers.append({"name": answer.name, "probabilities": probabilities})
    return json.dumps({"answers": answers}, ensure_ascii=False)


def _as_input(content: Any) -> Any:
    """A message's content as decision models take it."""
    if isinstance(content, str):
        return content
    parts: list[Message] = []
    for part in content:
        match part:
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                parts.append({"type": "input_image", "image_url": url})
            case {"text": str(text)}:
                parts.append({"type": "input_text", "text": text})
            case _:
                raise LlmError(f"a decision model cannot be shown a part of the type {part.get('type')!r}.")
    return parts
