"""One aspect that a judge scores separately; rubrics and tasks hold lists of them."""

import math
from dataclasses import dataclass

from gavel.scenarios.errors import JudgeError


@dataclass(frozen=True, slots=True)
class Criterion:
    """One aspect that a member is scored on separately."""

    name: str
    """One line; scores and explanations refer to it."""
    text: str
    """What is good, and what is bad."""
    weight: float = 1.0
    """Weight in the mean of a vote; 0 = scored and recorded only."""

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name.splitlines()) > 1:
            raise JudgeError(f"the name of a criterion is one line, not {self.name!r}.")
        if not self.text.strip():
            raise JudgeError(f"the criterion {self.name} has no text.", "Say in a sentence what is good and what bad.")
        if not 0 <= self.weight < math.inf:
            raise JudgeError(f"the weight of the criterion {self.name} must be 0 or above, not {self.weight}.")
        object.__setattr__(self, "weight", float(self.weight))  # 1 and 1.0 are one rubric
