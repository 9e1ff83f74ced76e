"""Work over a long group's text runs in a thread, so that the event loop and other calls go on.

Threads share one interpreter, so what they run must consist of short steps: one text at a time, never all text at once.
It is one thread for an event loop: several would not be faster, and the loop would have to wait for each one's turn.
"""

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from openai.types.chat.chat_completion import Choice

from gavel.scenarios.trajectory import Trajectory

LONG = 200_000
"""Characters from which a group is processed in a thread: it takes 0.1 s and more, which would block other calls."""

P = ParamSpec("P")
R = TypeVar("R")


async def off_loop_if_long(characters: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs `work` over a group's text of so many characters; in a thread when they are many."""
    if characters > LONG:
        loop = asyncio.get_running_loop()
        if loop not in _threads:
            _threads[loop] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="long group")
        within = partial(contextvars.copy_context().run, work, *args, **kwargs)
        return await loop.run_in_executor(_threads[loop], within)
    return work(*args, **kwargs)


_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()


def characters_of(trajectories: Iterable[Trajectory]) -> int:
    """About the characters of the trajectories' messages, as far as it takes to see that they are many."""
    total = 0
    for trajectory in trajectories:
        for history in (trajectory, *trajectory.additional_histories):
            for item in history.messages_and_choices:
                total += _of_choice(item) if isinstance(item, Choice) else _of_message(item)
            if total > LONG:
                return total
    return total


def _of_choice(choice: Choice) -> int:
    content, calls = choice.message.content or "", choice.message.tool_calls or ""  # of any type, as servers send them
    return len(str(content)) + len(str(calls))


def _of_message(message: Mapping[str, Any]) -> int:
    content, calls = message.get("content"), message.get("tool_calls")
    length = len(content) if isinstance(content, str) else len(str(content)) if content else 0
    return length + (len(str(calls)) if calls else 0)
