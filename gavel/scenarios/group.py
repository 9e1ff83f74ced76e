"""A group: trajectories of the same task, which are scored relative to each other."""

import inspect
from collections.abc import Awaitable, Generator, Iterable, Iterator
from typing import Any, Self

from pydantic import Field, JsonValue, PrivateAttr

from gavel.llm.types import Message
from gavel.scenarios.judgement import GroupJudgement
from gavel.scenarios.run_members import Member, discard, run_members
from gavel.scenarios.trajectory import Record, RolloutError, Trajectory


class PendingGroupError(RuntimeError):
    """A group of awaitables was read before it was awaited."""


class TrajectoryGroup(Record):
    """Trajectories of the same task, in input order.

    Built from trajectories, from exceptions, or from awaitables of trajectories. With awaitables
    the group is *pending*: `await group` (or a gather function) runs them all at once, puts what
    they return in input order, and puts what they raise into `exceptions`. When that is cancelled,
    the group keeps what has finished; a member that has not is a CancelledError in `exceptions`.
    """

    trajectories: list[Trajectory] = Field(default_factory=list[Trajectory])
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    metrics: dict[str, float | int | bool] = Field(default_factory=dict)
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
        members = list(trajectories)
        errors = [RolloutError.of(e) if isinstance(e, BaseException) else e for e in exceptions]
        if any(inspect.isawaitable(member) for member in members):
            super().__init__(**fields | {"exceptions": errors})
            self._pending = members  # type: ignore[assignment]
            return
        errors += [RolloutError.of(member) for member in members if isinstance(member, BaseException)]
        kept = [member for member in members if not isinstance(member, BaseException)]
        super().__init__(**fields | {"trajectories": kept, "exceptions": errors})

    @property
    def pending(self) -> int:
        """Members that have not been run yet."""
        return len(self._pending)

    def __await__(self) -> Generator[Any, None, Self]:
        return self._run().__await__()

    async def _run(self) -> Self:
        members, self._pending = self._pending, []
        outcomes, stopped = await run_members(members)
        for outcome in outcomes:
            if isinstance(outcome, Trajectory):
                self.trajectories.append(outcome)
            else:
                self.exceptions.append(RolloutError.of(outcome))
        if stopped is not None:
            raise stopped
        return self

    def discard_pending(self) -> None:
        """Discards the members that have not been run yet."""
        members, self._pending = self._pending, []
        for member in members:
            discard(member)

    def _settled(self) -> list[Trajectory]:
        if self._pending:
            raise PendingGroupError(
                f"this group still has {self.pending} rollouts to run: `await group` first, "
                "or pass it to gather_trajectory_groups"
            )
        return self.trajectories

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]
        return iter(self._settled())

    def __len__(self) -> int:
        return len(self._settled())

    def log(self, line: str) -> None:
        self.logs.append(line)
