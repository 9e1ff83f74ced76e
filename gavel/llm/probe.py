"""One cheap question to a model, before the first that matters, and the gate that lets it go first.

A client asks it when a reply is needed that no cassette holds, so a run that is replayed whole sends nothing. Requests
that come meanwhile wait for the answer, in whatever thread or event loop they are.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass

from gavel.llm.types import Message, Schema

MESSAGES: list[Message] = [
    {"role": "system", "content": "You answer in JSON."},
    {"role": "user", "content": 'Are you there? Reply with the JSON object {"ready": true} and nothing else.'},
]
SCHEMA: Schema = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """What the question showed."""

    model: str
    served_by: str
    """The model's name according to the server, or ""."""
    reply_format: str
    """How replies are asked for from then on: "json_schema", "json_object" or "text"."""
    seconds: float
    cost_usd: float | None
    """None = unknown."""
    problem: str = ""
    """Why the model cannot be asked; it is a fallback of a juror that can."""


class Gate:
    """Of one client; open until it is shut."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: Future[None] | None = None
        self._is_taken = True

    def shut(self) -> None:
        """Lets the next request ask the question."""
        with self._lock:
            self._opened, self._is_taken = Future(), False

    async def passed(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Returns when the question was asked; the first that comes asks it. Raises what `ask` raises, to that one."""
        with self._lock:
            opened, is_first = self._opened, not self._is_taken
            self._is_taken = True
        if opened is None or opened.done():
            return
        if not is_first:
            await asyncio.wait([asyncio.wrap_future(opened)])
            return
        try:
            await ask()
        finally:
            opened.set_result(None)
