"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API over chat completions, so that its
conversations continue from sampled tokens too.

Anthropic's clients add `/v1` to their base URL. One that is given OpenAI's base URL asks `/v1/v1`, which is served too.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.chat_errors import REFUSED, Refusal, refusal
from gavel.trainer.serving.chat_service import ChatService
from gavel.trainer.serving.messages_objects import MessageStream, failure, message
from gavel.trainer.serving.messages_request import chat_request
from gavel.trainer.serving.replies import json_reply, named_line, streamed

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    503: "overloaded_error",
}


class MessagesApi:
    """The routes."""

    def __init__(self, chat: ChatService) -> None:
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
            body: Message = await request.json()
            asked = chat_request(body)
            if body.get("stream"):
                events = MessageStream().events(self._chat.stream(request, asked))
                return await streamed(events, named_line, _failure)
            return json_reply(message(await self._chat.complete(request, asked)))
        except REFUSED as error:
            told = refusal(error)
            return json_reply(_failure(told), told.status)

    async def _count(self, request: Request) -> Response:
        try:
            return json_reply({"input_tokens": self._chat.prompt_tokens(chat_request(await request.json()))})
        except REFUSED as error:
            told = refusal(error)
            return json_reply(_failure(told), told.status)


def _failure(told: Refusal) -> Message:
    return failure(_ERROR_TYPES.get(told.status, "api_error"), told.message)
