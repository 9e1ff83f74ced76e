"""Other vendors' APIs over chat completions: a request is translated to one, and the answer is made of its chunks.

The items of a reply are open one at a time: each is closed when the next one starts.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import event, json_answer, object_of, streamed_answer
from gavel.trainer.serving.chat import ChatCompletions

Part = Literal["reasoning", "text", "call"]
_STREAMED: Message = {"stream": True, "stream_options": {"include_usage": True}}


def parts_of(said: Message) -> Iterator[tuple[Part, Message, str]]:
    """The parts of an assistant message or streamed delta: the kind, the call with its index, and the text."""
    if said.get("reasoning_content"):
        yield "reasoning", {}, said["reasoning_content"]
    if said.get("content"):
        yield "text", {}, said["content"]
    for index, call in enumerate(said.get("tool_calls") or ()):
        yield "call", {"index": index} | call, (call.get("function") or {}).get("arguments") or ""


class Answer(ABC):
    """One answer, which arrives as the chunks of a chat completion."""

    def __init__(self) -> None:
        self.begun = False
        self.item: tuple[Part, int] | None = None
        """The kind of the open item, and the index of its tool call in the reply."""
        self.choice: Message = {}
        """The last choice, which has the finish reason."""
        self.usage: Message = {}

    async def events(self, chunks: AsyncIterator[Message]) -> AsyncIterator[Message]:
        async for chunk in chunks:
            for each in self.take(chunk):
                yield each
        for each in self.end():
            yield each

    def take(self, chunk: Message) -> Iterator[Message]:
        """The events of a chunk."""
        self.usage = chunk.get("usage") or self.usage
        if not self.begun:
            self.begun = True
            yield from self.begin(chunk)
        for choice in chunk["choices"]:
            self.choice = choice
            for part in parts_of(choice["delta"]):
                yield from self.grow(*part)

    def grow(self, kind: Part, call: Message, text: str) -> Iterator[Message]:
        if self.item != (item := (kind, call.get("index", 0))):
            yield from self.close()
            self.item = item
            yield from self.start(kind, call)
        if text:
            yield self.more(kind, text)

    def close(self) -> Iterator[Message]:
        """Ends the open item."""
        if self.item is not None:
            yield from self.stop(self.item[0])
            self.item = None

    @abstractmethod
    def whole(self, completion: Message) -> Message:
        """The answer that says what `completion` says."""

    @abstractmethod
    def failure(self, said: Message) -> Message:
        """The event that ends a stream by an error, of its body in OpenAI's form."""

    @abstractmethod
    def begin(self, chunk: Message) -> Iterable[Message]: ...

    @abstractmethod
    def start(self, kind: Part, call: Message) -> Iterable[Message]: ...

    @abstractmethod
    def more(self, kind: Part, text: str) -> Message: ...

    @abstractmethod
    def stop(self, kind: Part) -> Iterable[Message]: ...

    @abstractmethod
    def end(self) -> Iterable[Message]: ...


def route(path: str, chat: ChatCompletions, translate: Callable[[Message], tuple[Message, Answer]]) -> Route:
    """`translate` makes of a body the chat request and its answer."""

    async def respond(request: Request) -> Response:
        body = await object_of(request)
        asked, answer = translate(body)
        if body.get("stream"):
            return await streamed_answer(request, events(asked, answer), lambda said: _event(answer.failure(said)))
        return await json_answer(request, whole(asked, answer))

    async def whole(asked: Message, answer: Answer) -> Message:
        return answer.whole(await chat.complete(asked))

    async def events(asked: Message, answer: Answer) -> AsyncGenerator[bytes, None]:
        async with aclosing(chat.stream(asked | _STREAMED)) as chunks:
            async for made in answer.events(chunks):
                yield _event(made)

    return Route(path, respond, methods=["POST"])


def _event(made: Message) -> bytes:
    return event(made, made["type"])
