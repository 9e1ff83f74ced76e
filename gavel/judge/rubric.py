"""Rubrics: what a good trajectory is, as a text for the judge, weighted criteria, or both.

Rubric("Solve the task.", [Criterion("correct", "The result is right.", 2), Criterion("short", "Few steps.")])

With criteria the judge scores each member on each criterion, and a vote is their weighted mean. Whatever may change a
score, weights and names included, changes the rubric's id.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gavel.base.fields import problem
from gavel.judge.errors import JudgeError
from gavel.prompts import content_hash, render
from gavel.scenarios.truth import Criterion as Criterion
from gavel.scenarios.truth import Truth, as_criteria

_FILE = re.compile(r"@\S+|[^@\s]\S*\.(?:md|txt|j2|rst)")
"""A text that names a file."""
_JSON = re.compile(r'\{\s*["}]')
"""The beginning of a rubric in JSON."""


class _RubricOnFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str = ""
    criteria: list[Any] = []


@dataclass(frozen=True)
class Rubric:
    """The standard that the judge scores by.

    Wherever a rubric is accepted, a string is too: plain text, or the output of `dump`.
    """

    text: str = ""
    criteria: Sequence[Criterion] = ()

    def __post_init__(self) -> None:
        text = re.sub(r"\A[\s\ufeff]+", "", self.text).rstrip()
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "criteria", tuple(self.criteria))
        if not text and not self.criteria:
            raise JudgeError("the rubric is empty.", "Say in a sentence what a good attempt is, or leave rubric out.")
        if len(self.criteria) > len(ascii_lowercase):
            raise JudgeError(
                f"a rubric has at most {len(ascii_lowercase)} criteria, not {len(self.criteria)}.",
                "Join those that belong together, or say them in the rubric's text.",
            )
        names = Counter(criterion.name.strip().casefold() for criterion in self.criteria)
        if twice := [name for name, times in names.items() if times > 1]:
            raise JudgeError(f"two criteria have the name {twice[0]}.", "Give each a name of its own.")
        if self.criteria and not any(criterion.weight for criterion in self.criteria):
            raise JudgeError("the weights of the criteria sum to 0.", "Give at least one a weight above 0.")
        if not math.isfinite(sum(criterion.weight for criterion in self.criteria)):
            raise JudgeError("the weights of the criteria are too large to be summed.", "Give smaller ones, such as 2.")

    @property
    def lettered(self) -> list[tuple[str, Criterion]]:
        """The criteria with their letters in a prompt."""
        return list(zip(ascii_lowercase, self.criteria, strict=False))

    @cached_property
    def words(self) -> str:
        """The text that the judge is shown. Excludes weights."""
        return render("judge/rubric.j2", text=self.text, criteria=self.lettered).strip()

    @cached_property
    def id(self) -> str:
        """`rubric@hash` of texts, names and weights, and of the text that the judge is shown."""
        return f"rubric@{content_hash(json.dumps([self.words, asdict(self)]))}"

    def for_task(self, truth: Truth) -> "Rubric":
        """The rubric of a task: its own instead of this one; its criteria instead of those of either."""
        rubric = self if truth.rubric is None else Rubric.of(truth.rubric)
        return Rubric(rubric.text, truth.criteria) if truth.criteria else rubric

    def dump(self) -> str:
        """A string that `Rubric.of` reads: the plain text without criteria, else JSON."""
        if not self.criteria and not (_JSON.match(self.text.lstrip()) or _FILE.fullmatch(self.text.strip())):
            return self.text
        return json.dumps(asdict(self), ensure_ascii=False, indent=2)

    @classmethod
    def of(cls, rubric: "Rubric | str | None") -> "Rubric":
        """The rubric itself, one made from a string, or the default rubric for None.

        A string that begins like a JSON object is read as one: `{"text": …, "criteria": [{"name": …, "text": …,
        "weight": …}]}`. Raises `JudgeError` for invalid JSON.
        """
        if isinstance(rubric, str):
            rubric = rubric.removeprefix("\ufeff")  # a byte order mark, of a file
        match rubric:
            case Rubric():
                return rubric
            case str() if _FILE.fullmatch(rubric.strip()):
                raise JudgeError(
                    f"the rubric is {rubric.strip()!r}, which names a file.",
                    "Give its text: rubric=Path('rubric.md').read_text(); the command line reads --rubric @rubric.md.",
                )
            case str():
                return _read(rubric) if _JSON.match(rubric.lstrip()) else cls(rubric)
            case None:
                return cls(render("judge/default_rubric.j2"))
            case _:
                raise JudgeError(
                    f"the rubric is of type {type(rubric).__name__}, not text or a Rubric.",
                    "Give its text: rubric=Path('rubric.md').read_text().",
                )


def _read(text: str) -> Rubric:
    try:
        found = _RubricOnFile.model_validate_json(text)
    except ValidationError as error:
        raise JudgeError(
            f"the rubric is no JSON of a rubric: {problem(error)}.",
            'Write {"criteria": [{"name": "…", "text": "…", "weight": 1}]}, or plain text.',
        ) from error
    return Rubric(found.text, as_criteria(found.criteria))
