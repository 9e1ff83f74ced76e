"""One turn of an agent whose model is called through LiteLLM, tools included."""

from typing import Any

import openai
from openai.types.chat.chat_completion import ChatCompletion
from tenacity import stop_after_attempt

from gavel.llm.budget import LONGEST_COMPLETION, Budget, Price, price, prices_from_environment
from gavel.llm.completion import complete_in_time
from gavel.llm.errors import UnknownModelError
from gavel.llm.failures import may_be_paid, retrying
from gavel.llm.providers import check_model, is_local, model_info
from gavel.llm.response import read_usage
from gavel.llm.types import Message, byte_bound

_SECONDS = 300.0
_ATTEMPTS = 4


class ChatAgent:
    """A model by its LiteLLM id, with the cost of its turns."""

    def __init__(self, model: str, budget: Budget | None = None, *, instead: str = "ollama/qwen3") -> None:
        """`budget` may be shared with other clients. `instead`: the alternative that a remedy names when the key is
        missing.

        Raises `UnknownModelError`, `MissingKeyError`, and `LlmError` for a budget in dollars that cannot be kept."""
        if is_local(model):
            raise UnknownModelError(
                f"{model} goes by rules and cannot act as an agent.",
                "Name a language model: openai/gpt-5-mini, ollama/qwen3.",
            )
        check_model(model, {}, instead=instead)
        self.model = model
        self.cost_usd: float | None = 0.0
        """None as soon as one turn's price is unknown."""
        self._budget = budget or Budget()
        if self._budget.max_cost_usd is not None:
            self._budget.check(model, self._price)

    @property
    def _price(self) -> Price | None:
        return price(self.model, prices_from_environment())

    async def turn(self, messages: list[Message], tools: list[Message], **options: Any) -> ChatCompletion:
        """The model's next turn. LiteLLM `options` that the model does not support are dropped.

        Temporary failures are retried. Raises `BudgetError`, and the errors of LiteLLM, which are those of OpenAI's
        client.
        """
        request = {name: value for name, value in options.items() if value is not None}
        if tools:
            request["tools"] = tools
        return await retrying(stop_after_attempt(_ATTEMPTS))(self._attempt, messages, request)

    async def _attempt(self, messages: list[Message], request: dict[str, Any]) -> ChatCompletion:
        bound = byte_bound(messages, {"tools": request.get("tools", [])})
        longest = request.get("max_completion_tokens") or model_info(self.model).get("max_output_tokens")
        reservation = await self._budget.reserve(self.model, self._price, bound, longest or LONGEST_COMPLETION)
        try:
            body = await complete_in_time(self.model, messages, request | {"drop_params": True}, _SECONDS)
        except BaseException as error:
            is_free = isinstance(error, openai.OpenAIError) and not may_be_paid(error)
            (self._budget.release if is_free else self._budget.forfeit)(reservation)
            raise
        usage, per_million = read_usage(body.get("usage")), self._price
        self._budget.settle(reservation, None, usage.prompt_tokens or bound // 4, usage.completion_tokens)
        if per_million is None or not usage.prompt_tokens or self.cost_usd is None:
            self.cost_usd = None
        else:
            self.cost_usd += (usage.prompt_tokens * per_million[0] + usage.completion_tokens * per_million[1]) / 1e6
        return ChatCompletion.construct(**body)
