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

from openai import AsyncOpenAI, NotGiven, Omit
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


Reply = Callable[[ChatRequest], Awaitable[ChatCompletion | Choice | Message]]


class FunctionModel:
    """A `ChatModel` whose turns come from the function `reply`: a completion, its choice, or the assistant's message
    alone."""

    def __init__(self, name: str, reply: Reply) -> None:
        self._name = name
        self._reply = reply
        self.chat = self.completions = self

    def openai_client(self) -> AsyncOpenAI:
        """A minimal client with only `chat.completions.create`, as rollouts call it."""
        return cast("AsyncOpenAI", self)

    def get_inference_name(self) -> str:
        return self._name

    async def create(self, *, extra_body: dict[str, Any] | None = None, **options: Any) -> ChatCompletion:
        # The SDK's sentinels stand for what was not given.
        given = {name: value for name, value in options.items() if not isinstance(value, NotGiven | Omit)}
        given |= extra_body or {}
        request = ChatRequest(
            messages=list(given["messages"]),
            tools=list(given.get("tools") or ()),
            temperature=given.get("temperature"),
            max_tokens=given.get("max_completion_tokens"),
            seed=given.get("seed"),
        )
        await asyncio.sleep(0)  # like a real client, so that an endless loop meets its deadline
        reply = await self._reply(request)
        if isinstance(reply, ChatCompletion):
            return reply
        if not isinstance(reply, Choice):
            message = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, **reply})
            ended = "tool_calls" if message.tool_calls else "stop"
            reply = Choice(index=0, finish_reason=ended, message=message)
        created = int(time.time())
        return ChatCompletion(
            id="function", choices=[reply], created=created, model=self._name, object="chat.completion"
        )


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
            beside = (reply.model_extra or {}).get("prompt_token_ids")
            if beside is not None and choice.model_extra is not None:
                choice.model_extra.setdefault("prompt_token_ids", beside)
            return choice
        case _:
            return None
