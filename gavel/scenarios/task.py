"""A task for an agent."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, overload

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from gavel.base.fields import Constructed
from gavel.scenarios.trajectory import Metadata
from gavel.scenarios.truth import Criterion, Truth, as_criteria


class Task(Constructed):
    """A task: the user's message, the hidden state for the world and the checks, and the judge's own information.

    The agent is shown `user` alone.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)
    user: str
    """The user's first message."""
    data: Metadata = Field(default_factory=dict)
    """Hidden state for tools and checks, never shown to the agent or the judge."""
    rubric: str | None = None
    """The judge's rubric for this task, replacing the scenario's: a text, or JSON of a rubric."""
    reference: str | None = None
    """An answer or a fact sheet, shown to the judge beside the attempts."""
    criteria: Annotated[list[Criterion], BeforeValidator(as_criteria)] = Field(default_factory=list[Criterion])
    """Criteria that the judge scores separately on this task, replacing the rubric's."""
    id: str = ""
    """Stable name; by default a hash of `user` and `data`."""

    @model_validator(mode="after")
    def _named(self) -> "Task":
        if not self.id:
            content = json.dumps([self.user, self.data], sort_keys=True)
            self.id = hashlib.sha256(content.encode()).hexdigest()[:12]
        return self

    @property
    def truth(self) -> Truth:
        """The judge's own information on the task."""
        return Truth(self.rubric or None, self.reference or None, tuple(self.criteria))

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> "Task":
        """The task of a trajectory, from the `metadata` that the rollout wrote."""
        return cls.model_validate(metadata["task"])


class DrawnTasks(Sequence[Task]):
    """Tasks drawn from numbers on demand: a split of thousands costs nothing to declare."""

    def __init__(self, numbers: Sequence[int], draw: Callable[[int], Task]) -> None:
        """`draw` returns the task of a number, always the same one; tasks of different numbers have different ids."""
        self.numbers = numbers
        self.draw = draw

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self.draw(number) for number in self.numbers[index]]
        return self.draw(self.numbers[index])
