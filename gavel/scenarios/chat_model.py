"""The interface of a model in an agent loop: chat completions under a name.

A `FunctionModel` takes its turns from a Python function: a script, or a model behind another library.

    model = FunctionModel("echo", reply)        # async def reply(request: ChatRequest) -> ChatCompletion | Message
    trajectory = await rollout(model, scenario, task)

"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from openai import AsyncOpenAI
from openai.types.chat.chat_completion import ChatCompletion, Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage

from gavel.llm.types import Message


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A rollout's request for one turn."""

    messages: list[Message]
    tools: list[Message]
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


Reply = Callable[[ChatRequest], Awaitable[ChatCompletion | Message]]


class FunctionModel:
    """A `ChatModel` whose turns come from the function `reply`: a completion, or the assistant's message alone."""

    def __init__(self, name: str, reply: Reply) -> None:
        self._name = name
        self._reply = reply

    def openai_client(self) -> AsyncOpenAI:
        """A minimal client with only `chat.completions.create`, as rollouts call it."""
        return cast(AsyncOpenAI, _Client(self._name, self._reply))

    def get_inference_name(self) -> str:
        return self._name


class _Client:
    def __init__(self, name: str, reply: Reply) -> None:
        self.chat = self.completions = self
        self._name = name
        self._reply = reply

    async def create(self, *, extra_body: dict[str, Any] | None = None, **options: Any) -> ChatCompletion:
        given = options | (extra_body or {})
        request = ChatRequest(
            messages=list(given["messages"]),
            tools=list(given.get("tools") or ()),
            temperature=_number(given.get("temperature")),
            max_tokens=_whole(given.get("max_completion_tokens")),
            seed=_whole(given.get("seed")),
        )
        await asyncio.sleep(0)  # like a real client, so that an endless loop meets its deadline
        reply = await self._reply(request)
        if isinstance(reply, ChatCompletion):
            return reply
        message = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, **reply})
        ended = "tool_calls" if message.tool_calls else "stop"
        return ChatCompletion(
            id="function",
            choices=[Choice(index=0, finish_reason=ended, message=message)],
            created=int(time.time()),
            model=self._name,
            object="chat.completion",
        )


def _number(value: object) -> float | None:
    """The number, or None if the SDK's sentinel says that it was not given."""
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


_PROMPT_IDS = "prompt_token_ids"


class ChatModel(Protocol):
    """A server of chat completions under a model name."""

    def openai_client(self) -> AsyncOpenAI: ...

    def get_inference_name(self) -> str: ...


class RolloutClient(AsyncOpenAI):
    """A client that may bypass the API to reach its model: rollouts ask it for their turns."""

    async def turn(self, body: dict[str, Any]) -> ChatCompletion:
        """The completion for a body of plain JSON. Raises the same errors as `chat.completions.create`."""
        rest = {name: value for name, value in body.items() if name != "model"}
        return await self.chat.completions.create(model=body["model"], messages=[], extra_body=rest)


def first_choice(reply: object) -> Choice | None:
    """The sampled turn; None for any other reply, such as a web page from a wrong address.

    vLLM puts the prompt's token ids beside the choices; they belong to the turn.
    """
    match reply:
        case ChatCompletion(choices=[Choice(message=ChatCompletionMessage()) as choice, *_]):
            beside = (reply.model_extra or {}).get(_PROMPT_IDS)
            if beside is not None and choice.model_extra is not None:
                choice.model_extra.setdefault(_PROMPT_IDS, beside)
            return choice
        case _:
            return None
