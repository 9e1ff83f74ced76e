"""One thing that an agent is asked to do."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, Field, JsonValue, model_validator

from gavel.scenarios.criterion import Criterion
from gavel.scenarios.truth import Truth


class Task(BaseModel):
    """A task: what the user says, what only the world and the checks know, and what only the judge is told.

    The agent is shown `user` alone.
    """

    user: str
    """The user's first message."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """The hidden state: for tools and checks, never shown to the agent or to the judge."""
    rubric: str | None = None
    """What good work on this task is, for the judge: replaces the scenario's rubric. A text, or JSON of a rubric."""
    reference: str | None = None
    """An answer or a fact sheet that the judge is shown beside the attempts."""
    criteria: list[Criterion] = Field(default_factory=list[Criterion])
    """What the judge scores separately on this task: replaces the criteria of the rubric."""
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
        """What the judge is told."""
        return Truth(self.rubric or None, self.reference or None, tuple(self.criteria))

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> "Task":
        """The task of a trajectory, from the `metadata` that the rollout wrote."""
        return cls.model_validate(metadata["task"])
