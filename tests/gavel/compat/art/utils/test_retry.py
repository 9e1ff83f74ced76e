"""Functions that are called again when they raise."""

from collections.abc import Awaitable, Callable

import pytest

from gavel.compat.art.utils.retry import retry


@pytest.mark.parametrize(("failures", "outcome"), [(0, "done"), (2, "done"), (3, None)])
async def test_a_function_has_three_attempts_plain_or_awaited(failures: int, outcome: str | None) -> None:
    told: list[int] = []
    decorate = retry(delay=0, on_retry=lambda error, attempt: told.append(attempt))
    for is_async in (False, True):
        told.clear()
        attempts = iter(range(9))

        def plain() -> str:
            if next(attempts) < failures:  # noqa: B023
                raise ValueError("no")
            return "done"

        async def awaited() -> str:
            return plain()

        async def call() -> str:
            return await decorate(awaited)() if is_async else decorate(plain)()  # noqa: B023

        await expect(call, outcome)
        assert told == list(range(1, min(failures, 2) + 1))


async def expect(call: Callable[[], Awaitable[str]], outcome: str | None) -> None:
    if outcome is None:
        with pytest.raises(ValueError, match="no"):
            await call()
    else:
        assert await call() == outcome


def test_another_kind_of_error_is_not_tried_again() -> None:
    attempts: list[int] = []

    @retry(exceptions=(KeyError,), delay=0)
    def fails() -> None:
        attempts.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert attempts == [1]
