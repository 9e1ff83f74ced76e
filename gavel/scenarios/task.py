"""One thing that an agent is asked to do."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, Field, JsonValue, model_validator


class Task(BaseModel):
    """A task: what the user says, and what only the world and the checks know."""

    user: str
    """The user's first message."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """The hidden state: for tools and checks, never shown to the agent or to the judge."""
    id: str = ""
    """Stable name; by default a hash of `user` and `data`."""

    @model_validator(mode="after")
    def _named(self) -> "Task":
        if not self.id:
            content = json.dumps([self.user, self.data], sort_keys=True)
            self.id = hashlib.sha256(content.encode()).hexdigest()[:12]
        return self

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> "Task":
        """The task of a trajectory, from the `metadata` that the rollout wrote."""
        return cls.model_validate(metadata["task"])
