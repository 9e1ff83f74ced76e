"""A decorator that calls a function again when it raises."""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Up to `max_attempts` calls, plain or awaited, with pauses of `delay` seconds and `backoff_factor` times more.

    `on_retry(error, attempt)` is called before each pause, in place of a warning in the log.
    """

    def report(function: Callable[..., Any], error: Exception, attempt: int) -> None:
        if on_retry is not None:
            on_retry(error, attempt)
        else:
            name = getattr(function, "__name__", repr(function))
            logger.warning("attempt %d of %d of %s failed: %s", attempt, max_attempts, name, error)

    def pauses() -> Iterator[tuple[int, float]]:
        """The attempts that another one may follow, each with the pause after it."""
        for attempt in range(1, max_attempts):
            yield attempt, delay * backoff_factor ** (attempt - 1)

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
                for attempt, pause in pauses():
                    try:
                        return await function(*args, **kwargs)
                    except exceptions as error:
                        report(function, error, attempt)
                        await asyncio.sleep(pause)
                return await function(*args, **kwargs)

            return cast("Callable[Parameters, Result]", awaited)

        @wraps(function)
        def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for attempt, pause in pauses():
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    report(function, error, attempt)
                    time.sleep(pause)
            return function(*args, **kwargs)

        return called

    return decorate
