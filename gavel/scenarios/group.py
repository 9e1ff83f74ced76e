"""A group: trajectories of the same task, which are scored relative to each other. Its members may be awaitables, which
are run concurrently and bounded; a failure affects one member only.

`with_judgements` makes a judged copy. In files a group is a line of JSON with the version of that form.

"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from copy import copy, deepcopy
from types import CoroutineType
from typing import Any, Self, TypeVar, cast

from pydantic import Field, PrivateAttr

from gavel.base.errors import GavelError, contain_cancellation
from gavel.llm.types import Message
from gavel.scenarios.deadline import name_of, unless_stuck
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Metadata, Metrics, Record, RolloutError, Trajectory

Member = Trajectory | BaseException | Awaitable[Trajectory]
MemberRunner = Callable[[Awaitable[Trajectory]], Awaitable[Trajectory]]


async def run_member(member: Awaitable[object]) -> Trajectory:
    """Runs one member, unbounded. Raises `TypeError` if it returns anything but a trajectory."""
    trajectory = await contain_cancellation(member)
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f"a rollout must return a Trajectory; this one returned {type(trajectory).__name__}")
    return trajectory.convert_appended()


member_runner: ContextVar[MemberRunner] = ContextVar("member_runner", default=run_member)
"""Runs one member in the current context; `gather` sets it to bound and count running members."""


def discard(awaitable: object) -> None:
    """Closes a coroutine that never ran, or cancels a task. A coroutine that swallowed its cancellation is left alone:
    it goes on in an abandoned task, and closing it there would cost its whole group."""
    if isinstance(awaitable, asyncio.Future):
        cast("asyncio.Future[Any]", awaitable).cancel()
    elif isinstance(awaitable, Coroutine):
        began = isinstance(awaitable, CoroutineType) and inspect.getcoroutinestate(awaitable) != inspect.CORO_CREATED  # pyright: ignore[reportUnknownArgumentType]
        if not began:
            awaitable.close()


class PendingGroupError(GavelError, RuntimeError):
    """A group of awaitables was read before it was awaited."""


class GroupError(GavelError, ValueError):
    """An argument is no trajectory or group, or no sequence of them."""


class TrajectoryGroup(Record):
    """Trajectories of the same task, in input order.

    Built from trajectories, from exceptions, or from awaitables of trajectories. With awaitables the group is
    *pending*: `await group` (or a gather function) runs them concurrently, stores results in input order, and stores
    errors in `exceptions`. If that is cancelled, the group keeps its finished members; the others are CancelledErrors
    in `exceptions`.
    """

    trajectories: list[Trajectory] = Field(default_factory=list[Trajectory])
    metadata: Metadata = Field(default_factory=dict)
    metrics: Metrics = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    exceptions: list[RolloutError] = Field(default_factory=list[RolloutError])
    judgement: GroupJudgement | None = None

    _pending: list[Member] = PrivateAttr(default_factory=list[Member])

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException | Awaitable[Trajectory] | Message] = (),
        *,
        exceptions: Iterable[RolloutError | BaseException | Message] = (),
        **fields: Any,
    ) -> None:
        members = _validate_members(trajectories)
        errors = [RolloutError.of(e) if isinstance(e, BaseException) else e for e in exceptions]
        if not all(isinstance(member, _RUN) for member in members):
            super().__init__(**fields | {"exceptions": errors})
            self._pending = members  # type: ignore[assignment]
            return
        errors += [RolloutError.of(member) for member in members if isinstance(member, BaseException)]
        kept = [member for member in members if not isinstance(member, BaseException)]
        super().__init__(**fields | {"trajectories": kept, "exceptions": errors})

    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]  # records are read without it

    @property
    def pending(self) -> int:
        """Members that have not been run yet."""
        return len(self._pending)

    def __await__(self) -> Generator[Any, None, Self]:
        return self._run().__await__()

    async def _run(self) -> Self:
        members, self._pending = self._pending, []
        run = member_runner.get()
        outcomes: list[Trajectory | BaseException] = [
            member if isinstance(member, Trajectory | BaseException) else asyncio.CancelledError("it had not finished")
            for member in members
        ]

        async def fill_in(at: int, member: Awaitable[Trajectory]) -> None:
            try:
                whole = run(member)
                outcomes[at] = await (unless_stuck(whole, name_of(member)) if run is run_member else whole)
            except Exception as error:
                outcomes[at] = error

        try:
            async with asyncio.TaskGroup() as tasks:
                for at, member in enumerate(members):
                    if not isinstance(member, Trajectory | BaseException):
                        tasks.create_task(fill_in(at, member))
        finally:  # also when it is cancelled
            for member, outcome in zip(members, outcomes, strict=True):
                discard(member)  # a cancelled task may never have reached it
                if isinstance(outcome, Trajectory):
                    self.trajectories.append(outcome)
                else:
                    self.exceptions.append(RolloutError.of(outcome))
        return self

    def discard_pending(self) -> None:
        """Discards the members that have not been run yet."""
        members, self._pending = self._pending, []
        for member in members:
            discard(member)

    def _settled(self) -> list[Trajectory]:
        if self._pending:
            raise PendingGroupError(
                f"this group still has {self.pending} rollouts to run",
                "First: await group, or groups = await gavel.gather_trajectory_groups(groups).",
            )
        return self.trajectories

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]
        return iter(self._settled())

    def __len__(self) -> int:
        return len(self._settled())

    def log(self, line: str) -> None:
        self.logs.append(line)


_RUN = (Trajectory, BaseException, Mapping)
"""Members that are no awaitables."""


def _validate_members(given: Any) -> list[Any]:
    """Validates the members of a new group. Raises `GroupError`."""
    if isinstance(given, Trajectory) or not _is_list(given):
        discard(given)
        raise GroupError(
            f"a group was given one {type(given).__name__}, and is made of several attempts at one task",
            "Put them in a list: gavel.TrajectoryGroup([…]).",
        )
    members: list[Any] = list(given)
    for at, member in enumerate(members):
        if isinstance(member, Trajectory):
            member.convert_appended()
        elif isinstance(member, TrajectoryGroup) or not (isinstance(member, _RUN) or inspect.isawaitable(member)):
            for each in members:
                discard(each)
            raise GroupError(
                f"member {at} of a group is a {type(member).__name__}, not a Trajectory",
                "Give gavel.Trajectory(messages_and_choices=[…]), or call the rollout: rollout(model, task). "
                "Groups stand in a list of their own.",
            )
    return members


def _is_list(given: object) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | Mapping | asyncio.Future)


def as_groups(given: Any, *, single: bool = True) -> list[TrajectoryGroup]:
    """The given groups as a list; a trajectory is a group of its own if `single`.

    Raises `GroupError` for anything else.
    """
    items: list[Any] = (
        [given] if isinstance(given, TrajectoryGroup | Trajectory) or not _is_list(given) else list(given)
    )
    groups: list[Any] = [TrajectoryGroup([each]) if isinstance(each, Trajectory) and single else each for each in items]
    for each in groups:
        if not isinstance(each, TrajectoryGroup):
            discard(each)
            raise GroupError(
                f"groups of trajectories are wanted, not a {type(each).__name__}",
                "Put the attempts at one task together: [gavel.TrajectoryGroup([…]), …]. "
                "Numbers of your own go into train(…, metrics={…}).",
            )
    return groups


def with_judgements(group: TrajectoryGroup, members: Sequence[Judgement], whole: GroupJudgement) -> TrajectoryGroup:
    """A copy of the group with judgements, and their scores as rewards.

    Containers are copied; messages and choices, which are never modified, are shared. The previous reward of a
    trajectory is kept in `metrics["independent_reward"]`.
    """
    judged: list[Trajectory] = []
    for trajectory, judgement in zip(group.trajectories, members, strict=True):
        copied = _copied(trajectory, "messages_and_choices", "additional_histories")
        if trajectory.reward is not None and trajectory.judgement is None:
            copied.metrics["independent_reward"] = trajectory.reward
        judged.append(copied.model_copy(update={"reward": judgement.score, "judgement": judgement}))
    return _copied(group, "exceptions").model_copy(update={"trajectories": judged, "judgement": whole})


_Copied = TypeVar("_Copied", Trajectory, TrajectoryGroup)


def _copied(record: _Copied, *containers: str) -> _Copied:
    """A copy of the record with a copy of its metadata, and with copies of its metrics, logs and these lists."""
    copies = {name: copy(getattr(record, name)) for name in ("metrics", "logs", *containers)}
    return record.model_copy(update={**copies, "metadata": deepcopy(record.metadata) if record.metadata else {}})


def unscored(group: TrajectoryGroup, reason: str) -> TrajectoryGroup:
    """A copy of the group without scores, for one reason."""
    members = [Judgement(reason=reason) for _ in group.trajectories]
    return with_judgements(group, members, GroupJudgement(status="unscored", reason=reason))


RECORD_VERSION = 1


class RecordVersionError(GavelError):
    """A record was written by a later version of Gavel."""


def to_line(group: TrajectoryGroup) -> str:
    """One line of JSON, without its line break."""
    return f'{{"format_version":{RECORD_VERSION},{group.to_json()[1:]}'


def check_version(row: dict[str, Any]) -> None:
    """Raises `RecordVersionError` when this version of Gavel cannot read the row."""
    version = row.get("format_version", RECORD_VERSION)
    if version is True or version != RECORD_VERSION:
        raise RecordVersionError(
            f"it has format_version {version!r:.80}; this version of Gavel reads {RECORD_VERSION}",
            "Restore the file, or upgrade Gavel: pip install --upgrade gavel-rl",
        )


def from_row(row: Any) -> TrajectoryGroup:
    """The group of a decoded line. Raises `RecordVersionError`, `NotANumberError`, `ValueError` for no group."""
    if isinstance(row, dict):
        check_version(row)  # pyright: ignore[reportUnknownArgumentType]
    return TrajectoryGroup.model_validate(row)
