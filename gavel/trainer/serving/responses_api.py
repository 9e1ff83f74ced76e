"""`POST /v1/responses`: OpenAI's Responses API over chat completions, so that its conversations continue from sampled
tokens too.
"""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_request import switch
from gavel.trainer.serving.errors import ANSWERED
from gavel.trainer.serving.response_store import ResponseStore
from gavel.trainer.serving.responses_objects import new_id, response
from gavel.trainer.serving.responses_request import chat_messages, chat_request, input_items
from gavel.trainer.serving.responses_stream import ResponseStream
from gavel.trainer.serving.sse import event, json_answer, object_of, refused, streamed_answer


class ResponsesApi:
    """The route, and the responses that later ones go on from."""

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat
        self._store = ResponseStore()
        self.routes = [Route("/v1/responses", self._create, methods=["POST"])]

    async def _create(self, request: Request) -> Response:
        try:
            body: Message = await object_of(request)
            earlier = self._store.conversation(body.get("previous_response_id"))
            items = self._store.resolved(input_items(body))
            asked = chat_request(body, earlier, items)
            conversation = [*earlier, *chat_messages(items)]
            streams = switch(body, "stream")
        except ANSWERED as error:
            return refused(error)
        if streams:
            stream = ResponseStream(body, new_id("resp"))
            events = self._events(body, conversation, stream, asked)
            return await streamed_answer(request, events, lambda said: _event(stream.failure(**said["error"])))
        return await json_answer(request, self._response(body, conversation, asked))

    async def _response(self, body: Message, conversation: list[Message], asked: Message) -> Message:
        made = response(body, await self._chat.complete(asked), new_id("resp"))
        self._remember(body, conversation, made)
        return made

    async def _events(
        self, body: Message, conversation: list[Message], stream: ResponseStream, asked: Message
    ) -> AsyncGenerator[bytes, None]:
        """The response of the last event is stored before it is sent."""
        chunks = self._chat.stream(asked | {"stream": True, "stream_options": {"include_usage": True}})
        try:
            async for made in stream.events(chunks):
                if made["type"] in ("response.completed", "response.incomplete"):
                    self._remember(body, conversation, made["response"])
                yield _event(made)
        finally:
            await chunks.aclose()

    def _remember(self, body: Message, conversation: list[Message], made: Message) -> None:
        if body.get("store") is not False:
            output = made["output"]
            self._store.add(made["id"], [*conversation, *chat_messages(output)], output)


def _event(made: Message) -> bytes:
    return event(made, made["type"])
