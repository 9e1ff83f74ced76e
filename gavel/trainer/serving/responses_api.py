"""`POST /v1/responses`: OpenAI's Responses API over chat completions, so that its conversations continue from sampled
tokens too.
"""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.chat_errors import REFUSED, refusal
from gavel.trainer.serving.chat_service import ChatService
from gavel.trainer.serving.replies import json_reply, named_line, streamed
from gavel.trainer.serving.response_store import ResponseStore
from gavel.trainer.serving.responses_objects import new_id, response
from gavel.trainer.serving.responses_request import chat_messages, chat_request, input_items
from gavel.trainer.serving.responses_stream import ResponseStream


class ResponsesApi:
    """The route, and the responses that later ones go on from."""

    def __init__(self, chat: ChatService) -> None:
        self._chat = chat
        self._store = ResponseStore()
        self.routes = [Route("/v1/responses", self._create, methods=["POST"])]

    async def _create(self, request: Request) -> Response:
        try:
            body: Message = await request.json()
            earlier = self._store.conversation(body.get("previous_response_id"))
            items = self._store.resolved(input_items(body))
            asked = chat_request(body, earlier, items)
            conversation = [*earlier, *chat_messages(items)]
            response_id = new_id("resp")
            if body.get("stream"):
                stream = ResponseStream(body, response_id)
                events = self._remembered(body, conversation, stream.events(self._chat.stream(request, asked)))
                return await streamed(events, named_line, stream.failure)
            made = response(body, await self._chat.complete(request, asked), response_id)
            self._remember(body, conversation, made)
            return json_reply(made)
        except REFUSED as error:
            told = refusal(error)
            fault = {"message": told.message, "type": "invalid_request_error", "code": told.code, "param": None}
            return json_reply({"error": fault}, told.status)

    async def _remembered(
        self, body: Message, conversation: list[Message], events: AsyncIterator[Message]
    ) -> AsyncIterator[Message]:
        """`events`; the response of the last one is stored before it is sent."""
        async for event in events:
            if event["type"] in ("response.completed", "response.incomplete"):
                self._remember(body, conversation, event["response"])
            yield event

    def _remember(self, body: Message, conversation: list[Message], made: Message) -> None:
        if body.get("store") is not False:
            output = made["output"]
            self._store.add(made["id"], [*conversation, *chat_messages(output)], output)
