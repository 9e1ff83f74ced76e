"""The tasks of a scenario as items with a number, which is all that AgentGym's protocol can name.

Items are the training tasks, and after them the held-out ones. Of a split with more tasks than `MOST` the first are
offered.
"""

from dataclasses import dataclass
from typing import Any

from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.task import Task

MOST = 20_000
"""Tasks of a split that are offered."""


@dataclass(frozen=True, slots=True)
class Items:
    """The numbered tasks of a scenario."""

    scenario: Scenario
    train: int
    held_out: int

    @classmethod
    def of(cls, scenario: Scenario) -> "Items":
        return cls(scenario, *(min(MOST, len(scenario.tasks(split))) for split in ("train", "held_out")))

    def __len__(self) -> int:
        return self.train + self.held_out

    def task(self, item: int) -> Task:
        """Raises `LookupError` for a number that no item has."""
        if not 0 <= item < len(self):
            raise LookupError(f"there is no item {item}: items are 0 to {len(self) - 1}")
        split: Split = "train" if item < self.train else "held_out"
        return self.scenario.tasks(split)[item if item < self.train else item - self.train]

    def described(self, start: int, stop: int) -> list[dict[str, Any]]:
        """What a trainer elsewhere may know of items: never the hidden state (`Task.data`)."""
        own = {"user": ""} if self.scenario.rollout is not None else {}  # such a rollout says what it likes
        return [
            self.task(item).model_dump(mode="json", exclude={"data"}, exclude_defaults=True) | {"item": item, **own}
            for item in range(max(0, start), min(stop, len(self)))
        ]
