"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API over chat completions, so that its
conversations continue from sampled tokens too.

Anthropic's clients add `/v1` to their base URL. One that is given OpenAI's base URL asks `/v1/v1`, which is served too.
"""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_request import switch
from gavel.trainer.serving.errors import ANSWERED
from gavel.trainer.serving.messages_objects import MessageStream, error_object, message
from gavel.trainer.serving.messages_request import chat_request
from gavel.trainer.serving.sse import event, json_answer, object_of, refused, streamed_answer


class MessagesApi:
    """The routes."""

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat
        self.routes = [
            route
            for path in ("/v1/messages", "/v1/v1/messages")
            for route in (
                Route(path, self._create, methods=["POST"]),
                Route(f"{path}/count_tokens", self._count, methods=["POST"]),
            )
        ]

    async def _create(self, request: Request) -> Response:
        try:
            body: Message = await object_of(request)
            asked, streams = chat_request(body), switch(body, "stream")
        except ANSWERED as error:
            return refused(error, error_object)
        if streams:
            return await streamed_answer(request, self._events(asked), _failure, error_object)
        return await json_answer(request, self._message(asked), error_object)

    async def _message(self, asked: Message) -> Message:
        return message(await self._chat.complete(asked))

    async def _events(self, asked: Message) -> AsyncGenerator[bytes, None]:
        chunks = self._chat.stream(asked | {"stream": True, "stream_options": {"include_usage": True}})
        try:
            async for made in MessageStream().events(chunks):
                yield event(made, made["type"])
        finally:
            await chunks.aclose()

    async def _count(self, request: Request) -> Response:
        try:
            asked = chat_request(await object_of(request))
        except ANSWERED as error:
            return refused(error, error_object)

        async def counted() -> Message:
            return {"input_tokens": self._chat.prompt_tokens(asked)}

        return await json_answer(request, counted(), error_object)


def _failure(said: Message) -> bytes:
    return event(error_object(said), "error")
