"""The judge's own information on a task, hidden from the agent: a rubric, a reference and criteria of this task alone.

    Task(user="Who wrote Emma?", reference="Jane Austen")          the rollout keeps it in metadata["task"]
    TrajectoryGroup(…, metadata={"truth": {"reference": "Jane Austen"}})     the same for rollouts of your own
    {"messages": […], "answer": "Jane Austen"}                     a row of a file: `with_truth_of_rows`

The truth of a group is in `metadata["truth"]` or `metadata["task"]`, of the group or of its members. A group has one
truth: members with different ones are not comparable, and are rejected.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from pydantic import JsonValue

from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import plain_value


@dataclass(frozen=True, slots=True)
class Criterion:
    """One aspect that a member is scored on separately."""

    name: str
    """One line; scores and explanations refer to it."""
    text: str
    """Describes good and bad work."""
    weight: float = 1.0
    """Weight in the mean of a vote; 0 = scored and recorded only."""

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name.splitlines()) > 1:
            raise JudgeError(f"the name of a criterion is one line, not {self.name!r}.")
        if not self.text.strip():
            raise JudgeError(f"the criterion {self.name} has no text.", "Say in a sentence what is good and what bad.")
        if not 0 <= self.weight < math.inf:
            raise JudgeError(f"the weight of the criterion {self.name} must be 0 or above, not {self.weight}.")
        object.__setattr__(self, "weight", float(self.weight))  # 1 and 1.0 give one rubric


KEY = "truth"
"""Key in the metadata of a group or trajectory."""
COLUMNS = ("rubric", "criteria", "reference", "answer")
"""Fields of a row that hold a truth."""


@dataclass(frozen=True, slots=True)
class Truth:
    """A task's own rubric, reference and criteria. Falsy if it has none of them."""

    rubric: str | None = None
    """Replaces the judge's rubric."""
    reference: str | None = None
    """An answer or a fact sheet, shown to the judge beside the attempts."""
    criteria: tuple[Criterion, ...] = ()
    """Replace those of the rubric."""

    def __bool__(self) -> bool:
        return self.rubric is not None or self.reference is not None or bool(self.criteria)

    def dump(self) -> dict[str, JsonValue]:
        """The form that `read_truth` reads, without empty fields."""
        fields: dict[str, JsonValue] = {**asdict(self), "criteria": [asdict(each) for each in self.criteria]}
        return {name: value for name, value in fields.items() if value}


def read_truth(fields: Mapping[str, Any], *, of_row: bool = False) -> Truth:
    """The truth in a task, or in the fields of a row, where a column `answer` may hold the reference.

    Empty fields are ignored. A reference that is not text is shown as JSON. Criteria are a list of texts or of objects
    with name, text and perhaps weight, or JSON of one. Raises `JudgeError` for any other.
    """
    rubric, criteria, reference, answer = (_given(fields.get(name)) for name in COLUMNS)
    reference = answer if reference is None and of_row else reference
    texts = (None if each is None else _text(each) for each in (rubric, reference))
    return Truth(*texts, criteria=() if criteria is None else tuple(as_criteria(criteria)))


def truth_of(group: TrajectoryGroup) -> Truth:
    """The truth of a group. Raises `JudgeError` if its members have different ones, or one cannot be read."""
    own = _in_metadata(group.metadata)
    return _common([_in_metadata(trajectory.metadata) for trajectory in group.trajectories], own, "")


def with_truth_of_rows(group: TrajectoryGroup) -> TrajectoryGroup:
    """The group with the truth in the columns of its members' rows (their metadata) as its own.

    Raises `JudgeError` as `truth_of` does.
    """
    if truth := _common([read_truth(t.metadata, of_row=True) for t in group.trajectories], Truth(), " in columns"):
        return group.model_copy(update={"metadata": {**group.metadata, KEY: truth.dump()}})
    return group


def _common(members: Sequence[Truth], own: Truth, where: str) -> Truth:
    """The group's own truth, or else that of all members."""
    different = set(members) | {own} if own and any(members) else set(members)
    if len(different) > 1:
        one, other, *_ = sorted((json.dumps(truth.dump(), ensure_ascii=False) for truth in different), reverse=True)
        raise JudgeError(
            f"the attempts of a group have different rubrics, references or criteria{where}: {one:.120} and "
            f"{other:.120}; they are not comparable.",
            f"Group them by task (--by FIELD), or rename the fields ({', '.join(COLUMNS)}) if they hold other things.",
        )
    return own or next(iter(members), own)


def _in_metadata(metadata: Mapping[str, Any]) -> Truth:
    for name in (KEY, "task"):
        fields: object = metadata.get(name)
        if isinstance(fields, Mapping) and (truth := read_truth(cast("Mapping[str, Any]", fields))):
            return truth
    return Truth()


def _given(value: Any) -> Any:
    """None for the empty values of files; an array or a tensor as a list or number."""
    value = plain_value(value)
    is_blank = value in ("", [], {}) or (isinstance(value, str) and not value.strip())
    return None if is_blank or (isinstance(value, float) and math.isnan(value)) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_criteria(value: Any) -> list[Criterion]:
    """Criteria in the form of tasks and files: a list of texts or objects, or its JSON. Raises `JudgeError`."""
    try:
        entries = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        entries = None
    if not isinstance(entries, list | tuple):
        raise _unreadable(value)
    return [_read_criterion(number, entry) for number, entry in enumerate(entries, start=1)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _read_criterion(number: int, entry: Any) -> Criterion:
    match entry:
        case Criterion():
            return entry
        case str():
            return Criterion(f"criterion {number}", entry)
        case {"name": str(name), "text": str(text), **rest}:
            given = {field: value for field, value in rest.items() if value is not None}  # tables fill fields with None
            weight = given.pop("weight", 1.0)
            if not given and isinstance(weight, int | float) and not isinstance(weight, bool):
                return Criterion(name, text, weight)
        case _:
            pass
    raise _unreadable(entry)


def _unreadable(value: Any) -> JudgeError:
    return JudgeError(
        f"these are no criteria: {_text(value):.120}",
        'Write a list of texts, or of {"name": "…", "text": "…", "weight": 1}.',
    )
