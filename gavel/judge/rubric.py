"""What a good trajectory is, in words that a judge reads: a text, criteria with weights, or both.

With criteria the judge scores each member on each of them, and a vote is their weighted mean. Whatever changes a
score, weights and names included, changes the rubric's id.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from string import ascii_lowercase

from pydantic import BaseModel, ConfigDict, ValidationError

from gavel.judge.errors import JudgeError
from gavel.prompts import content_hash, render

_JSON = re.compile(r'\{\s*["}]')
"""How a rubric begins that is written as JSON."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a member is scored on by itself."""

    name: str
    """One line, by which scores and explanations go."""
    text: str
    """What is good, and what is bad."""
    weight: float = 1.0
    """Its share of a vote beside the other weights; 0 = scored and recorded only."""

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name.splitlines()) > 1:
            raise JudgeError(f"the name of a criterion is one line, not {self.name!r}.")
        if not self.text.strip():
            raise JudgeError(f"the criterion {self.name} has no text.", "Say in a sentence what is good and what bad.")
        if not 0 <= self.weight < math.inf:
            raise JudgeError(f"the weight of the criterion {self.name} must be 0 or above, not {self.weight}.")
        object.__setattr__(self, "weight", float(self.weight))  # 1 and 1.0 are one rubric


class _CriterionOnFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    text: str
    weight: float = 1.0


class _RubricOnFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str = ""
    criteria: list[_CriterionOnFile] = []


@dataclass(frozen=True, slots=True)
class Rubric:
    """The judge's yardstick. A string, plain or as `dump` wrote it, is taken wherever a rubric is."""

    text: str = ""
    criteria: Sequence[Criterion] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.strip())
        object.__setattr__(self, "criteria", tuple(self.criteria))
        if not self.text and not self.criteria:
            raise JudgeError("the rubric is empty.", "Say in a sentence what a good attempt is, or leave rubric out.")
        if len(self.criteria) > len(ascii_lowercase):
            raise JudgeError(f"a rubric has at most {len(ascii_lowercase)} criteria, not {len(self.criteria)}.")
        names = Counter(criterion.name.strip().casefold() for criterion in self.criteria)
        if twice := [name for name, times in names.items() if times > 1]:
            raise JudgeError(f"two criteria have the name {twice[0]}.", "Give each a name of its own.")
        if self.criteria and not any(criterion.weight for criterion in self.criteria):
            raise JudgeError("the weights of the criteria sum to 0.", "Give at least one a weight above 0.")

    @property
    def lettered(self) -> list[tuple[str, Criterion]]:
        """The criteria with the letters that they go by in a prompt."""
        return list(zip(ascii_lowercase, self.criteria, strict=False))

    @property
    def words(self) -> str:
        """All that the judge is told of it; not the weights, which are none of its business."""
        return render("judge/rubric.j2", text=self.text, criteria=self.lettered).strip()

    @property
    def id(self) -> str:
        """`rubric@hash` of texts, names and weights, and of how they are put to the judge."""
        return f"rubric@{content_hash(json.dumps([self.words, asdict(self)]))}"

    def dump(self) -> str:
        """What `Rubric.of` reads back: the text when that is all, else JSON."""
        if not self.criteria and not _JSON.match(self.text):
            return self.text
        return json.dumps(asdict(self), ensure_ascii=False, indent=2)

    @classmethod
    def of(cls, rubric: "Rubric | str | None") -> "Rubric":
        """The rubric itself, one made of a string, or the general one for None.

        A string that begins as a JSON object does is read as one: `{"text": …, "criteria": [{"name": …, "text": …,
        "weight": …}]}`. Raises `JudgeError` when it is none.
        """
        match rubric:
            case Rubric():
                return rubric
            case str():
                return _read(rubric) if _JSON.match(rubric.lstrip()) else cls(rubric)
            case None:
                return cls(render("judge/default_rubric.j2"))


def _read(text: str) -> Rubric:
    try:
        found = _RubricOnFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise JudgeError(
            f"the rubric is no JSON of a rubric: {where + ': ' if where else ''}{first['msg']}.",
            'Write {"criteria": [{"name": "…", "text": "…", "weight": 1}]}, or plain text.',
        ) from error
    return Rubric(found.text, [Criterion(**criterion.model_dump()) for criterion in found.criteria])
