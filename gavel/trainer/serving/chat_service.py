"""What the other APIs are built on: chat completions, whole or in chunks."""

from collections.abc import AsyncIterator
from typing import Protocol

from starlette.requests import Request

from gavel.llm.types import Message


class ChatService(Protocol):
    """Answers chat requests, given as the body's JSON. Both may raise what `chat_errors` has."""

    async def complete(self, request: Request, body: Message) -> Message:
        """The completion; `request` tells when the client goes away."""
        ...

    def stream(self, request: Request, body: Message) -> AsyncIterator[Message]:
        """The chunks of the completion, the last one with the usage."""
        ...

    def prompt_tokens(self, body: Message) -> int:
        """Tokens of the prompt of a request."""
        ...
