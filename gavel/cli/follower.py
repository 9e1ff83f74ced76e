"""Who is told how a long wait goes on: a display in a terminal, or nobody."""

import contextlib
from collections.abc import Callable, Generator
from typing import Protocol


class Follower(Protocol):
    """Is told how work goes on: `waiting` is around `total` parts, each of which calls what it gives.

    `left` tells the seconds that the rest takes, None as long as nobody knows; without it the parts so far tell them.
    """

    def waiting(
        self,
        what: str,
        total: int,
        unit: str,
        status: Callable[[], str] = ...,
        left: Callable[[], float | None] | None = ...,
    ) -> contextlib.AbstractContextManager[Callable[[], None]]: ...


class Silent:
    """A follower that shows nothing."""

    @contextlib.contextmanager
    def waiting(
        self,
        what: str,
        total: int,
        unit: str,
        status: Callable[[], str] = lambda: "",
        left: Callable[[], float | None] | None = None,
    ) -> Generator[Callable[[], None]]:
        yield lambda: None
