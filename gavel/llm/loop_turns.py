"""Work that can wait takes turns: one piece in a round of the event loop, so that requests go out between the pieces.

    reply = await …          the call's place is free, and the next request may be sent
    await next_turn()        other tasks send theirs
    read(reply)              a millisecond or more, in which nothing else runs

Replies come in bursts: without turns all of them are read before the first of the next requests is sent.
"""

import asyncio
from collections import deque
from weakref import WeakKeyDictionary, WeakSet


async def next_turn() -> None:
    """Returns when the caller may work for some milliseconds, first come first served."""
    loop = asyncio.get_running_loop()
    if loop in _WITHOUT:
        return
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = _Turns()
    await turns.wait(loop)


def work_without_turns() -> None:
    """In the running event loop pieces follow each other at once.

    For a service that is always at work: there a round of the loop for each piece costs more than it gains.
    """
    _WITHOUT.add(asyncio.get_running_loop())


class _Turns:
    """Of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._give, loop)
        return turn

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the first that still waits its turn, and comes again in the next round while others wait."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # as it is when its task was cancelled
                turn.set_result(None)
                break
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop.call_soon(self._give, loop)


_WITHOUT: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()
