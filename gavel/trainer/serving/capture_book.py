"""The captures that are open at an endpoint: for each key, the turns that were sampled with it.

Requests are told apart by their key. A turn counts once its whole reply was made for a client that still waits. All of
it lives in the endpoint's event loop, and is freed when the capture is closed.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.trainer.serving.captured_trajectory import CapturedTurn
from gavel.trainer.serving.conversation import meaning, plain_message

KEY_PREFIX = "gavel-capture-"
_OPEN = 8192
"""Captures that are kept; of more, the one that was used least recently is forgotten."""


class UnknownCapture(GavelError):
    """A key of no capture that is open."""

    def __init__(self) -> None:
        super().__init__(
            "this key belongs to no open capture", "Send requests inside `async with model.capture()`, with its key."
        )


class CaptureBook:
    """The open captures, by their keys."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, OpenCapture] = OrderedDict()

    def open(self) -> str:
        """The key of a new capture."""
        key = KEY_PREFIX + secrets.token_hex(16)
        self._open[key] = OpenCapture()
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return key

    def of(self, key: str) -> "OpenCapture | None":
        """The capture of a request; None for a key that is none of a capture. Raises `UnknownCapture`."""
        if not key.startswith(KEY_PREFIX):
            return None
        if key not in self._open:
            raise UnknownCapture
        self._open.move_to_end(key)
        return self._open[key]

    async def close(self, key: str, patience: float) -> "OpenCapture":
        """The capture, which takes no more requests; those in flight have `patience` seconds.

        Raises `UnknownCapture`.
        """
        if self.of(key) is None:
            raise UnknownCapture
        capture = self._open.pop(key)
        await capture.settle(patience)
        return capture


class OpenCapture:
    """The turns of one capture so far."""

    def __init__(self) -> None:
        self.turns: list[CapturedTurn] = []
        self.in_flight = 0
        self.abandoned = 0
        """Turns whose client went away before they were sampled to their end."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._numbers: dict[bytes, list[int]] = {}
        """The turns whose conversation, reply included, has this key."""

    @contextmanager
    def request(self) -> Generator[None]:
        """Context in which a request is answered."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def settle(self, patience: float) -> None:
        """Waits until no request is in flight, or `patience` seconds have passed."""
        try:
            async with asyncio.timeout(patience):
                await self._idle.wait()
        except TimeoutError:
            pass  # `in_flight` tells

    def add(self, messages: Sequence[Message], tools: list[Message] | None, choice: Message) -> None:
        """Remembers that `choice` was sampled after `messages`."""
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        parent = self._parent(self._numbers.get(_key(messages[: last + 1]), []), choice)
        context = list(messages if parent is None else messages[last + 1 :])
        self._numbers.setdefault(_key([*messages, choice["message"]]), []).append(len(self.turns))
        self.turns.append(CapturedTurn(parent, context, tools, choice))

    def _parent(self, known: Sequence[int], choice: Message) -> int | None:
        """Of turns that say the same, the one whose tokens continue, else the last one; None for an edited one."""
        if not choice["continues_sampled"]:
            return None
        for number in reversed(known):
            earlier = self.turns[number].choice
            ids = [*earlier["prompt_token_ids"], *earlier["token_ids"]]
            if choice["prompt_token_ids"][: len(ids)] == ids:
                return number
        return known[-1] if known else None


def _key(messages: Sequence[Message]) -> bytes:
    return meaning([plain_message(message) for message in messages]).key


current_capture: ContextVar[OpenCapture | None] = ContextVar("current_capture", default=None)
"""The capture of the request that is answered."""
