"""Judges leased groups concurrently, and renews the leases.

A group is started at most a few times: one whose judging has crashed several processes fails instead of being retried
forever. Writing the outcome is retried until it succeeds; a group that lost votes while the database was unavailable is
judged once more, with the replies that are stored.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gavel.base.processes import holder_name
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.service.errors import DatabaseUnavailableError, OverBudgetError, ServiceError, without_text
from gavel.judge.service.schemas import Record, ScoreRequest, Verdict
from gavel.judge.service.store import leases
from gavel.judge.service.store.database import every
from gavel.judge.service.store.group_store import DeadlineClock
from gavel.judge.service.store.reply_store import asked_by
from gavel.llm.budget import Ledger, noted_calls
from gavel.scenarios.group import TrajectoryGroup

if TYPE_CHECKING:
    from gavel.judge.service.engine.engine import Engine

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
"""Seconds between polls of the database for other processes' work."""
_RETRY_SECONDS = 0.5, 5.0
"""First and longest pause between retries while the database is unavailable."""
_STUCK_SECONDS = 10.0
"""Seconds after which callers get an error if an outcome cannot be written."""
_TAKEN_AT_ONCE = 32
_JUDGED_AT_MOST = 3
_AGAIN = "Send the group again, with the same Idempotency-Key or as the same members, once the judge answers."
_REPORT = "Report it with the service's log, which has the place and no transcript."


@dataclass(slots=True)
class _Judging:
    """A group that is being judged here."""

    task: asyncio.Task[None]
    ledger: Ledger | None = None
    """The calls made for it; None once none follow, and its outcome is written."""


class Worker:
    """The judging in one process."""

    def __init__(self, engine: "Engine") -> None:
        self.owner = holder_name()
        self._engine = engine
        self._store, self._database = engine.store, engine.database
        self._limits = engine.config.limits
        self.running: dict[str, _Judging] = {}
        """By judgement."""
        self._ending: set[asyncio.Task[None]] = set()
        self._processes = leases.ProcessWatch(self._limits.lease_seconds)
        self.reserved = 0
        """Number of groups about to be accepted and started."""
        self._wake = asyncio.Event()
        self._is_queued = True
        """Whether the database may hold unleased groups, as far as this process knows."""
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the loops. Raises `DatabaseUnavailableError`."""
        await self._beat()
        keeping = every(self._limits.lease_seconds / 3, self._keep_leases, "leases are not renewed")
        self._loops = [asyncio.create_task(self._take_work()), asyncio.create_task(keeping)]

    async def stop(self, seconds: float) -> None:
        """Takes no more work, waits for running judgements, and releases the unfinished ones."""
        for loop in self._loops:
            loop.cancel()
        running = [judging.task for judging in self.running.values()]
        if running:
            await asyncio.wait(running, timeout=seconds)
        unfinished = [*running, *self._ending]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*self._loops, *unfinished, return_exceptions=True)
        try:
            await self._database.write(lambda connection: leases.end(connection, [self.owner]))
        except ServiceError as error:
            _LOG.warning("leases end by themselves: %s", error.message)

    @property
    def room(self) -> int:
        """Number of groups that may be started now."""
        return self._limits.concurrent_groups - len(self.running) - self.reserved

    def begin(self, judgement: str, work: Coroutine[None, None, None]) -> None:
        """Starts judging a group that this process has leased."""
        judging = self.running[judgement] = _Judging(asyncio.create_task(work))
        judging.task.add_done_callback(partial(self._ended, judgement))

    def cancel(self, judgement: str) -> None:
        """Ends the judging of a group, which is released if it is still wanted.

        No further requests are sent, and those in flight are awaited: they will be charged, and their cost is known
        then.
        """
        judging = self.running.get(judgement)
        if judging is not None and judging.ledger is not None and not judging.ledger.is_closed:
            ending = asyncio.create_task(self._end(judging, judging.ledger))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end(self, judging: _Judging, ledger: Ledger) -> None:
        """Cancels the judging once no request is in flight, unless it has ended meanwhile: writing and charging its
        outcome must not be cancelled."""
        await ledger.close()
        if judging.ledger is not None:
            judging.task.cancel()

    def _ended(self, judgement: str, task: asyncio.Task[None]) -> None:
        if (current := self.running.get(judgement)) and current.task is task:  # else it was restarted after it failed
            del self.running[judgement]
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a group is left to its lease's end: %s", type(error).__name__, exc_info=without_text(error))
        if self._is_queued:
            self._wake.set()

    def wake(self) -> None:
        """Checks for work now."""
        self._is_queued = True
        self._wake.set()

    async def _take_work(self) -> None:
        while True:
            self._wake.clear()  # before polling: a later wake-up asks for another poll
            taken = 0
            try:
                taken = await self._take_some()
            except DatabaseUnavailableError as error:
                _LOG.warning("no work is taken: %s", error.message)
            if taken and self.room:
                continue
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _take_some(self) -> int:
        wanted = min(self.room, _TAKEN_AT_ONCE)
        if wanted <= 0:
            return 0
        self.reserved += wanted
        try:
            self._is_queued = False
            if not await self._database.read(leases.has_free_work):
                return 0
            self._is_queued = True
            running = list(self.running)
            works = await self._database.write(lambda c: leases.take(c, self.owner, wanted, running))
        finally:
            self.reserved -= wanted
        for record, payload, times in works:
            self.begin(record.id, self._judge_leased(record, payload, times))
        return len(works)

    async def _keep_leases(self) -> None:
        await self._beat()
        dead = self._processes.dead(await self._database.read(leases.beats))
        if dead := [owner for owner in dead if owner != self.owner]:
            await self._database.write(partial(leases.end, owners=dead))
            self.wake()
        ids = list(self.running)
        kept = await self._database.write(partial(leases.keep, owner=self.owner, ids=ids))
        for lost in set(ids) - kept:  # deleted, finished, or taken over by another process
            self.cancel(lost)

    async def _beat(self) -> None:
        await self._database.write(partial(leases.beat, owner=self.owner, clock=DeadlineClock().id))

    async def _judge_leased(self, record: Record, payload: bytes, times: int) -> None:
        ids = ["?"] * record.members
        try:
            request = ScoreRequest.model_validate_json(payload)
            ids = request.ids
            if times > self._limits.leases:
                raise JudgeError(
                    f"the group was begun {times - 1} times, and each time the process that judged it ended.",
                    "Look at the service's log and memory; send a smaller group.",
                )
            judge, group = self._engine.judges.prepare(request)  # the settings may have changed since it was accepted
        except ValidationError:
            error = JudgeError("the stored request cannot be read by this version of Gavel.", "Send it again.")
            await self._over(record, Verdict.failed(ids, error))
        except (JudgeError, ServiceError) as error:
            await self._over(record, Verdict.failed(ids, error))
        else:
            await self.judge(record, ids, judge, group)

    async def judge(self, record: Record, ids: list[str], judge: Judge, group: TrajectoryGroup) -> None:
        """Judges a group within its key's budget, writes the outcome, and charges for it in any case."""
        asked_by.set(record.key_id)  # within this group's task
        judging, admission, tracing = self.running[record.id], self._engine.admission, self._engine.tracing
        with noted_calls() as ledger:
            judging.ledger = ledger
            try:
                async with admission.room(record.key_id):
                    asking = self._judge_group(ids, judge, group)
                    verdict = await (tracing.judgement(record, asking) if tracing else asking)
                    judging.ledger = None
                    await self._over(record, verdict, ledger)
            except OverBudgetError as error:
                judging.ledger = None
                await self._over(record, Verdict.unscored(ids, error.message))
            except asyncio.CancelledError:
                if judging.ledger is not None:  # else its outcome was being written
                    await self._given_up(record, ledger)
                raise

    async def _given_up(self, record: Record, ledger: Ledger) -> None:
        """Charges for the calls of a group that was deleted, taken over, or left to the next process."""
        if not ledger.is_closed and ledger.unpriced:  # requests were in flight when the time to stop had passed
            _LOG.warning("%d requests that may be charged for are charged to no key", ledger.unpriced)
            ledger.unpriced = 0
        try:
            await self._store.give_up(record, ledger)
        except ServiceError as error:
            _LOG.warning("%.6f USD are charged to no key: %s", ledger.usd, error.message)

    async def _judge_group(self, ids: list[str], judge: Judge, group: TrajectoryGroup) -> Verdict:
        """The verdict; judges again if votes were lost while the database was unavailable."""
        for attempt in range(_JUDGED_AT_MOST):
            outages = self._database.outages
            try:
                verdict = _outcome(ids, await judge.score(group))
            except (JudgeError, ServiceError) as error:
                verdict = Verdict.failed(ids, error)
            except Exception as error:
                _LOG.error("judging a group failed with %s", type(error).__name__, exc_info=without_text(error))
                problem = JudgeError(f"an internal error: {type(error).__name__}.", _REPORT)
                return Verdict.failed(ids, problem)
            lost = verdict.group is None or verdict.group.lost_orders
            if not lost or outages == self._database.outages or attempt == _JUDGED_AT_MOST - 1:
                return verdict
            await asyncio.sleep(_RETRY_SECONDS[0] * 2**attempt)
        raise AssertionError

    async def _over(self, record: Record, verdict: Verdict, ledger: Ledger | None = None) -> None:
        """Writes the outcome and reports it. An outcome that cannot be stored becomes a failure, since a retry would be
        the same."""
        try:
            finished = await self._write(record, verdict, ledger)
        except Exception as error:
            _LOG.error("a judgement cannot be stored: %s", type(error).__name__, exc_info=without_text(error))
            problem = JudgeError(f"the judgement cannot be stored: {type(error).__name__}.", _REPORT)
            finished = await self._write(record, Verdict.failed(verdict.ids, problem), ledger)
        self._engine.finished(record.id, finished)

    async def _write(self, record: Record, verdict: Verdict, ledger: Ledger | None) -> Record | None:
        pause, longest = _RETRY_SECONDS
        at, began = time.time(), time.monotonic()
        while True:
            try:
                return await self._store.finish(record, verdict, ledger, at)
            except DatabaseUnavailableError as error:
                _LOG.warning("a judgement is not written yet: %s", error.message)
                if time.monotonic() - began > _STUCK_SECONDS:
                    self._engine.waiters.settle(record.id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)


def _outcome(ids: list[str], judged: TrajectoryGroup) -> Verdict:
    """Converts a judged group to a verdict: failed, to be judged again, if no member has a score because the judge gave
    no reply at all."""
    verdict = Verdict.of(ids, judged)
    group = verdict.group
    if group is None or group.status != "unscored" or not group.lost_orders:
        return verdict
    if group.prompt_tokens or group.cached_calls:
        return verdict
    reason = group.reason or "no usable reply"
    return Verdict.failed(ids, JudgeError(f"the judge could not be asked: {reason}.", _AGAIN))
