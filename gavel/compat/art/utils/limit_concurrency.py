"""A decorator that lets so many calls of a coroutine function run at once."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def limit_concurrency(
    n: int, derive_key: Callable[..., str] | None = None
) -> Callable[[Callable[Parameters, Awaitable[Result]]], Callable[Parameters, Awaitable[Result]]]:
    """At most `n` calls at once; with `derive_key(*args, **kwargs)`, at most `n` of each key."""

    def decorate(function: Callable[Parameters, Awaitable[Result]]) -> Callable[Parameters, Awaitable[Result]]:
        semaphores: dict[str, asyncio.Semaphore] = {}

        @wraps(function)
        async def limited(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            key = derive_key(*args, **kwargs) if derive_key else ""
            async with semaphores.setdefault(key, asyncio.Semaphore(n)):
                return await function(*args, **kwargs)

        return limited

    return decorate
