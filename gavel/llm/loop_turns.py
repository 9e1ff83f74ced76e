"""Work that can wait takes turns: one piece in a round of the event loop, so that requests go out between the pieces.

    reply = await …          the call's place is free, and the next request may be sent
    await next_turn()        other tasks send theirs
    read(reply)              a millisecond or more, in which nothing else runs

Replies come in bursts: without turns all of them are read before the first of the next requests is sent.
"""

import asyncio
from weakref import WeakKeyDictionary

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def next_turn() -> None:
    """Returns when the caller may work for some milliseconds, first come first served."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        await asyncio.sleep(0)
