"""The service's engine: accepts groups, has them judged, and answers. Every route and wire goes through it.

Groups whose members arrive separately (`join_group`) become judgements like others: by the process that the last member
reaches, or by the first one that sees the deadline pass. A waiting caller costs a future; messages are in the database.

A request is in the database before `submit` returns, and its judgement before `result` returns it.

Judges share the cassette and the budget. Only models and modes that the settings name are allowed, so that no request
reaches an address of its choice.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Generator
from contextlib import contextmanager
from functools import lru_cache

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge, check_attempts
from gavel.judge.offline import stand_in
from gavel.judge.panel.juror import jury
from gavel.judge.panel.modes import ModeName
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.admission import ANYONE, Admission, Caller
from gavel.judge.service.engine.telemetry import Metrics, Tracing
from gavel.judge.service.engine.worker import Worker
from gavel.judge.service.errors import InvalidRequestError, NotFoundError, OverloadedError
from gavel.judge.service.schemas import GroupRecord, MemberRequest, NewMember, Record, ScoreRequest
from gavel.judge.service.store.database import Database, every
from gavel.judge.service.store.group_store import GroupStore
from gavel.judge.service.store.judgement_store import Store, new_id
from gavel.judge.service.store.reply_store import database_cassette
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.providers import PROVIDER, model_id
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import truth_of

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.25
"""Seconds between polls for judgements that other processes may finish."""
_LOOKED_UP_AT_ONCE = 500
_KEEP_SECONDS = 5.0
"""Seconds between writes of the remaining time of open groups."""
_COUNT_SECONDS = 2.0
_REFRESH_SECONDS = 2.0
_RETENTION_SECONDS = 3600.0
_OVERWRITE_SECONDS = 30.0
"""Seconds until SQLite's log holds no erased data."""
_DAY = 86_400.0


_MAX_JUDGES = 64


class Judges:
    """Creates judges for requests, and caches those used last."""

    def __init__(self, config: ServiceConfig, cassette: Cassette) -> None:
        """Raises `JudgeError` for contradictory settings."""
        self._config = config
        self._cassette = cassette
        self._rubrics = config.read_rubrics()
        self._budget = Budget(config.judge.max_cost_usd, config.judge.max_tokens)
        self._made = lru_cache(_MAX_JUDGES)(self._make)
        self.default = self._made(None, config.judge.orders, config.judge.mode)

    def prepare(self, request: ScoreRequest) -> tuple[Judge, TrajectoryGroup]:
        """The judge of a request, and the group. Raises `InvalidRequestError` if it cannot be judged."""
        config, preset = self._config.judge, None
        model = None if request.judge == config.models else request.judge
        judge = self._made(model, request.orders or config.orders, request.mode or config.mode)
        if request.preset is not None:
            if request.rubric is not None:
                raise InvalidRequestError("a request has a rubric or a preset, not both.", "Leave one of them out.")
            if (preset := self._rubrics.get(request.preset)) is None:
                names = ", ".join(self._rubrics) or "none"
                raise InvalidRequestError(
                    f"there is no rubric preset {request.preset!r}.",
                    f"There are: {names}. Presets are the service's setting rubrics; or send the text as rubric.",
                )
        try:
            group = request.group(preset)
            check_attempts(group)
            judge.rubric.for_task(truth_of(group))
            if set(judge.names) == {stand_in.MODEL}:
                stand_in.check_group_readable(judge.rubric, group)
        except stand_in.UnreadableRubricError as error:
            raise InvalidRequestError(error.message, error.forms) from error
        except JudgeError as error:
            raise InvalidRequestError(error.message, error.remedy) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"a message cannot be read: {type(error).__name__} ({error!s:.60})."
            raise InvalidRequestError(why, "Send messages in OpenAI's form.") from error
        return judge, group

    def _make(self, model: str | None, orders: int, mode: ModeName) -> Judge:
        """Creates a judge. `model`: None = the configured one."""
        allowed, config = self._config.judges, self._config.judge
        modes = dict.fromkeys([config.mode, *self._config.modes])
        if model is not None and model not in allowed:
            names = ", ".join(allowed) or "the service's own only"
            raise InvalidRequestError(
                f"the judge {model!r} is not allowed here.",
                f"Allowed: {names}. Leave judge out, or add the model to the service's setting judges.",
            )
        if orders > max(self._config.limits.orders, config.orders):
            raise InvalidRequestError(
                f"{orders} orders are more than the {self._config.limits.orders} that are allowed.",
                "Ask for fewer, or raise the service's setting limits.orders.",
            )
        if mode not in modes:
            raise InvalidRequestError(f"the mode {mode!r} is not allowed here.", f"Allowed: {', '.join(modes)}.")
        config = config.model_copy(update={"orders": orders, "mode": mode, "models": model or config.models})
        own = config.cassette is not None or _asks_none(config)
        return config.build(cassette=None if own else self._cassette, budget=self._budget)


def _asks_none(config: JudgeConfig) -> bool:
    """Whether all judge models run in this process, and are free."""
    models = [model for juror in jury(config.models) for model in juror.models]
    return all(isinstance(model, str) and model_id(model).startswith(f"{PROVIDER}/") for model in models)


class Waiters:
    """Futures of pending judgements, by id. For one event loop."""

    def __init__(self) -> None:
        self._futures: defaultdict[str, set[asyncio.Future[Record | None]]] = defaultdict(set)

    @contextmanager
    def waiting(self, judgement: str) -> Generator["asyncio.Future[Record | None]"]:
        """Gives a future of the finished record, None for a deleted one; removes it after the block."""
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        self._futures[judgement].add(future)
        try:
            yield future
        finally:
            self._futures[judgement].discard(future)
            if not self._futures[judgement]:
                del self._futures[judgement]

    def settle(self, judgement: str, outcome: Record | Exception | None) -> None:
        """Resolves all futures of a judgement; after a `TimeoutError` its waits count as elapsed."""
        for future in [each for each in self._futures.get(judgement, ()) if not each.done()]:
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def give_up(self, ids: Collection[str] | None = None) -> None:
        """Ends the waits for these judgements (None: all) as if they had elapsed."""
        for judgement in self._futures if ids is None else ids:
            self.settle(judgement, TimeoutError())

    @property
    def ids(self) -> Collection[str]:
        """Ids of the awaited judgements."""
        return self._futures.keys()

    def __len__(self) -> int:
        return sum(len(futures) for futures in self._futures.values())


class Engine:
    """One process of the service. Created and used in one event loop."""

    def __init__(self, config: ServiceConfig, database: Database) -> None:
        """Raises `JudgeError` for a judge that cannot be created."""
        self.config = config
        self.database = database
        self.store = Store(database)
        self.cassette = database_cassette(database, is_shared=config.share_replies)
        self.judges = Judges(config, self.cassette)
        self.waiters = Waiters()
        self.metrics = Metrics()
        self.admission = Admission(database, config.keys)
        self.tracing = Tracing.exporting() if config.otel else None
        self.worker = Worker(self)
        self.groups = GroupStore(database)
        self.counts = {"queued": 0, "running": 0}
        """Unfinished groups of all processes as of the last poll, and those that were queued here since."""
        self._open_groups = 0
        """Open groups of all processes: as of the last poll, plus those started here since."""
        self.is_stopping = False
        self._stop_by = 0.0
        """Event loop time at which unfinished judging is left to the next start."""
        self._clocks_apart = time.time() - time.monotonic()
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Resumes unfinished work. Raises `JudgeError` for a judge that cannot be called."""
        self.judges.default.check()
        await load_libraries()
        await self.admission.refresh()
        await self.worker.start()
        watches = [
            every(_POLL_SECONDS, self._look_elsewhere, "judgements are not watched"),
            every(_KEEP_SECONDS, self.groups.keep_time, "the time of open groups is not kept"),
            every(_COUNT_SECONDS, self._count, "groups are not counted"),
            every(_OVERWRITE_SECONDS, self.store.overwrite_erased, "the database's log is not emptied yet"),
            every(_REFRESH_SECONDS, self.admission.refresh, "API keys are not read", after=_REFRESH_SECONDS),
            every(_POLL_SECONDS, self._close_due, "open groups are not watched"),
        ]
        if self.config.retention_days is not None:
            watches.append(every(_RETENTION_SECONDS, self._expire, "old judgements are not deleted yet"))
        self._loops = [asyncio.create_task(loop) for loop in watches]

    def begin_stopping(self) -> None:
        """Stops accepting requests. Waits for members of open groups end soon with the current state, since none can
        come; waits for judgements, once the time to stop has passed."""
        if not self.is_stopping:
            self.is_stopping = True
            loop = asyncio.get_running_loop()
            self._stop_by = loop.time() + self.config.limits.shutdown_seconds
            loop.call_at(self._stop_by, self.waiters.give_up)

    async def stop(self) -> None:
        """Finishes running judgements within the allowed time, and leaves the rest to the next start."""
        self.begin_stopping()
        await self.worker.stop(max(self._stop_by - asyncio.get_running_loop().time(), 0.0))
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self.waiters.give_up()
        self.cassette.close()
        if self.tracing is not None:
            await self.tracing.stop()

    async def submit(
        self, request: ScoreRequest, caller: Caller = ANYONE, idempotency_key: str | None = None
    ) -> Record:
        """Accepts a group: it is stored, and will be judged. Raises a `ServiceError` if it is rejected."""
        project = caller.project_of(request.project) if caller.scope else request.project
        judge, group = self.check(request, project, caller)
        queued = self.counts["queued"]
        begun = len(self.worker.running) + self.worker.reserved
        is_mine = not queued and begun < self.config.limits.concurrent_groups
        if not is_mine and queued >= self.config.limits.waiting_groups:
            raise OverloadedError(f"{queued:,} groups wait already.", "Try again later.")
        payload = request.model_dump_json(exclude_defaults=True).encode()
        record = Record(
            id=new_id(),
            project=project,
            key_id=caller.key_id,
            status="queued",
            judge=", ".join(judge.names),
            members=len(request.trajectories),
            created_at=time.time(),
            traceparent=caller.traceparent,
        )
        owner = self.worker.owner if is_mine else None
        self.worker.reserved += is_mine
        try:
            record, is_new = await self.store.accept(
                record, payload, owner, idempotency_key=idempotency_key, scope=caller.scope
            )
        finally:
            self.worker.reserved -= is_mine
        if is_new and is_mine:
            self.worker.begin(record.id, self.worker.judge(record, request.ids, judge, group))
        elif is_new:
            self.counts["queued"] += 1
            self.worker.wake()
        return record

    async def join_group(
        self, name: str, request: MemberRequest, caller: Caller, *, begins_rounds: bool = False
    ) -> GroupRecord:
        """Stores a member of the group `name`, once; returns the group's current state.

        `begins_rounds`: a closed group's name begins another group. Raises a `ServiceError` for a member that does not
        fit.
        """
        limits = self.config.limits
        if request.expected > limits.members:
            raise InvalidRequestError(
                f"the group expects {request.expected} members; at most {limits.members} are allowed.",
                "Make smaller groups, or raise the service's setting limits.members.",
            )
        request = request.model_copy(update={"project": caller.project_of(request.project)})
        member, options = request.trajectory_in, request.options
        alone = ScoreRequest.model_construct(trajectories=[member], **dict(options))
        judge, _ = self.check(alone, request.project, caller)
        full = OverloadedError(f"{self._open_groups:,} groups wait for members already.", "Try again later.")
        new = NewMember(
            request,
            group=name,
            key_id=caller.key_id,
            judge=", ".join(judge.names),
            trajectory=member.model_dump_json(exclude_defaults=True).encode(),
            options=options.model_dump_json(exclude_defaults=True).encode(),
            deadline_seconds=request.deadline_seconds or limits.deadline_seconds,
            max_size=limits.body_bytes,
            no_more_groups=full if self._open_groups >= limits.open_groups else None,
            scope=caller.scope,
            begins_rounds=begins_rounds,
        )
        group = await self.groups.join(new)
        if not group.is_open:
            self.worker.wake()
        self._open_groups += group.is_open and group.arrived == 1
        return group

    async def find_group(self, name: str, member: str, project: str, caller: Caller) -> GroupRecord:
        """The group that a member is in. Raises `NotFoundError`."""
        project = caller.project_of(project)
        group = await self.groups.find(caller.key_id, project, name, member) if caller.may_use(project) else None
        if group is None:
            raise NotFoundError(
                f"there is no member {member!r} in a group {name!r}.",
                "POST it to /v1/groups/{group}/members first; groups belong to a project and an API key.",
            )
        return group

    async def result(self, record: Record, wait: float | None = None) -> Record:
        """The finished record, or the unfinished one after `wait` seconds (None: `limits.wait_seconds`).

        Raises `NotFoundError` if the judgement was deleted.
        """
        seconds = self.config.limits.wait_seconds if wait is None else wait
        with self.waiters.waiting(record.id) as future:
            if not record.is_finished and record.status != "open" and record.id not in self.worker.running:
                record = await self.get(record.id)
            if not record.is_finished and seconds:
                try:
                    async with asyncio.timeout(seconds):
                        record = await future or await self.get(record.id)  # which raises for a deleted one
                except TimeoutError:
                    record = await self.store.get(record.id) or record
        return record

    async def get(self, judgement: str, caller: Caller = ANYONE) -> Record:
        """The record of a judgement that the caller may see. Raises `NotFoundError`."""
        record = await self.store.get(judgement)
        if record is None or not caller.may_use(record.project):
            raise NotFoundError(
                f"there is no judgement {judgement}, or it was deleted.",
                "It is of another project, or the id is not right; a deleted group can be sent again.",
            )
        return record

    async def delete(self, judgement: str, caller: Caller = ANYONE) -> None:
        """Deletes a judgement with its transcripts and replies, or the open group that would get it. Raises
        `NotFoundError`."""
        project = await self.groups.project_of_open(judgement)
        if project is None or not caller.may_use(project):
            await self.get(judgement, caller)
        await self.store.delete(judgement)
        self.worker.cancel(judgement)
        self.waiters.settle(judgement, None)

    def check(self, request: ScoreRequest, project: str, caller: Caller) -> tuple[Judge, TrajectoryGroup]:
        """The judge and the group of an acceptable request. Raises a `ServiceError` for any other."""
        if self.is_stopping:
            raise OverloadedError("the service is stopping.", "Try again in some seconds.")
        limits = self.config.limits
        if len(request.trajectories) > limits.members:
            raise InvalidRequestError(
                f"the group has {len(request.trajectories)} members; at most {limits.members} are allowed.",
                "Send smaller groups, or raise the service's setting limits.members.",
            )
        if len(set(request.ids)) < len(request.ids):
            raise InvalidRequestError("two members have the same id.", "Give each an id of its own, or none.")
        judge, group = self.judges.prepare(request)
        if caller.scope is not None:
            caller.check(project, judge.names)
        return judge, group

    def finished(self, judgement: str, record: Record | None) -> None:
        """Counts a judgement that is over (None: it was deleted), and tells who waits for it."""
        if record is not None:
            self.metrics.judged(record)
            self.admission.finished(record)
        self.waiters.settle(judgement, record)

    async def _close_due(self) -> None:
        if await self.groups.close_due():
            self.worker.wake()
        self._open_groups = await self.groups.open_groups()

    async def _look_elsewhere(self) -> None:
        """Resolves waits for judgements that other processes finish or delete; when stopping, those for members too."""
        elsewhere = [each for each in self.waiters.ids if each not in self.worker.running]
        for start in range(0, len(elsewhere), _LOOKED_UP_AT_ONCE):
            some = elsewhere[start : start + _LOOKED_UP_AT_ONCE]
            still_open = await self.groups.still_open(some)
            if self.is_stopping:
                self.waiters.give_up(still_open)
            closed = [each for each in some if each not in still_open]
            records = await self.store.get_all(closed)
            for each in closed:
                if (record := records.get(each)) is None or record.is_finished:
                    self.waiters.settle(each, record)

    async def _count(self) -> None:
        self.counts = await self.store.counts()
        self.metrics.waiting(self.counts, len(self.waiters))

    async def _expire(self) -> None:
        assert self.config.retention_days is not None
        now = min(time.time(), self._clocks_apart + time.monotonic())  # a clock that is set ahead deletes nothing
        if deleted := await self.store.delete_before(now - self.config.retention_days * _DAY):
            _LOG.info("%d judgements older than %g days are deleted", deleted, self.config.retention_days)


async def load_libraries() -> None:
    """Judges a group with a free model, so that no request waits for lazily imported libraries."""
    group = TrajectoryGroup(Trajectory(messages_and_choices=[{"role": "user", "content": text}]) for text in "ab")
    await Judge("constant").score(group)
