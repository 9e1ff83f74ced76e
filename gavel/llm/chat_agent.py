"""One turn of an agent whose model is asked through LiteLLM, tools included."""

from typing import Any

from openai.types.chat.chat_completion import ChatCompletion

from gavel.llm.completion import complete_in_time
from gavel.llm.prices import price, prices_from_environment
from gavel.llm.providers import check_model
from gavel.llm.types import Message

_SECONDS = 300.0


class ChatAgent:
    """A model by its LiteLLM id, with what its turns have cost."""

    def __init__(self, model: str) -> None:
        """Raises `UnknownModelError`, `MissingKeyError`."""
        check_model(model, {})
        self.model = model
        self.cost_usd: float | None = 0.0
        """None once a turn's price is not known."""

    async def turn(self, messages: list[Message], tools: list[Message], **options: Any) -> ChatCompletion:
        """The model's next turn. `options` of LiteLLM that the model does not know are left out.

        Raises the errors of LiteLLM, which are those of OpenAI's client.
        """
        request = {name: value for name, value in options.items() if value is not None}
        if tools:
            request["tools"] = tools
        reply, _ = await complete_in_time(self.model, messages, request | {"drop_params": True}, _SECONDS)
        per_million = price(self.model, prices_from_environment())
        if per_million is None or reply.usage is None or self.cost_usd is None:
            self.cost_usd = None
        else:
            tokens = reply.usage.prompt_tokens, reply.usage.completion_tokens
            self.cost_usd += (tokens[0] * per_million[0] + tokens[1] * per_million[1]) / 1e6
        return ChatCompletion.construct(**reply.model_dump())
