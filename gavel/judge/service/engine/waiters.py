"""Those who wait for a judgement in this process: a future each, and no thread."""

import asyncio
from collections.abc import Collection, Generator
from contextlib import contextmanager

from gavel.judge.service.schemas.judgement_record import Record


class Waiters:
    """Futures by the judgement that they wait for. For one event loop."""

    def __init__(self) -> None:
        self._futures: dict[str, set[asyncio.Future[Record | None]]] = {}

    @contextmanager
    def waiting(self, judgement: str) -> Generator["asyncio.Future[Record | None]", None, None]:
        """A future of the finished record, None for one that was deleted; it is forgotten after the block."""
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(judgement, set()).add(future)
        try:
            yield future
        finally:
            futures = self._futures.get(judgement, set())
            futures.discard(future)
            if not futures:
                self._futures.pop(judgement, None)

    def settle(self, judgement: str, record: Record | None) -> None:
        """Answers all who wait for it."""
        for future in self._futures.get(judgement, ()):
            if not future.done():
                future.set_result(record)

    def give_up(self) -> None:
        """Ends all waits as if their time were over."""
        for judgement in self._futures:
            self.give_up_on(judgement)

    def give_up_on(self, judgement: str) -> None:
        """Ends the waits for it as if their time were over."""
        for future in self.of(judgement):
            if not future.done():
                future.set_exception(TimeoutError())

    def of(self, judgement: str) -> Collection["asyncio.Future[Record | None]"]:
        """Those that wait for it."""
        return self._futures.get(judgement, ())

    @property
    def ids(self) -> Collection[str]:
        """The judgements that somebody waits for."""
        return self._futures.keys()

    def __len__(self) -> int:
        return sum(len(futures) for futures in self._futures.values())
