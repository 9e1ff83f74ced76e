"""An attempt as it is exported: its trajectory, where it stands, and what is known of it besides its turns.

`facts` holds all that a trajectory and its group say beside messages and tools, so that each format can keep it in its
free fields; the keys are those of `Trajectory` and `TrajectoryGroup`.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gavel.scenarios.exporters.losses import Losses
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group, and where it was read."""

    group: TrajectoryGroup
    index: int
    """From 0, over everything that is exported."""
    split: str | None = None
    step: int | None = None
    """None = it was read from a file, not from a run."""

    @property
    def id(self) -> str:
        """`train/12/3`, or `3` where it is of no run."""
        parts = (self.split, self.step, self.index)
        return "/".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One member of a group."""

    trajectory: Trajectory
    place: StoredGroup
    member: int

    @property
    def group_id(self) -> str:
        return self.place.id

    @property
    def id(self) -> str:
        """Unique within an export, and the same each time."""
        return f"{self.group_id}/{self.member}"

    @property
    def agent(self) -> str:
        return self.trajectory.agent or "agent"

    @property
    def reward(self) -> float | None:
        """What it was scored with, if it was."""
        return self.trajectory.reward


def attempts(stored: StoredGroup) -> Iterator[Attempt]:
    """The members of a group."""
    for member, trajectory in enumerate(stored.group):
        yield Attempt(trajectory, stored, member)


def facts(attempt: Attempt, losses: Losses) -> dict[str, Any]:
    """All that is known of an attempt beside its turns and tools, without what is empty.

    The exceptions of a group are told with its first member.
    """
    own = attempt.trajectory.model_dump(
        exclude={"messages_and_choices", "tools", "additional_histories", "agent"}, warnings=False
    )
    beside = {"trajectories"} if attempt.member == 0 else {"trajectories", "exceptions"}
    group = attempt.place.group.model_dump(exclude=beside, warnings=False)
    place = {"index": attempt.place.index, "split": attempt.place.split, "step": attempt.place.step}
    return losses.plain(
        {**_told(own), "member": attempt.member, "group": {**_told(place), **_told(group)}},
    )


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


def count_untold(stored: StoredGroup, losses: Losses) -> None:
    """Counts the exceptions of a group without members, for formats that have a record for each member."""
    if not len(stored.group):
        losses.add("exception of a group in which no member ended: left out", len(stored.group.exceptions))


def reward_or_none(attempt: Attempt) -> float | None:
    """The reward as JSON can hold it: what is not finite is counted with the `facts`."""
    reward = attempt.reward
    return reward if reward is not None and Losses().number(reward) is not None else None


def hex_id(*parts: Any, size: int) -> str:
    """An id of `size` bytes as hexadecimal digits, the same for the same parts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="replace")).hexdigest()[: 2 * size]
