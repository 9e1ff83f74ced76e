"""Scores that a person gave to members of groups, without having seen those of the judge.

They are kept as judged groups in `annotations.jsonl` of the directory that is viewed, with each score as the metric
`human`: `gavel judge report annotations.jsonl --reference human` compares the judge with them. A group that is scored
again replaces its earlier scores.
"""

import fcntl
import json
import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from gavel.base.errors import GavelError
from gavel.base.fields import problem
from gavel.base.files import is_inside, write_atomically
from gavel.judge.audit.human_labels import GoldenGroup, order_by_labels
from gavel.scenarios.group import TrajectoryGroup, from_row, to_line

FILE_NAME = "annotations.jsonl"
METRIC = "human"
_SOURCE = "annotated"
"""Key of a group's metadata."""


class AnnotationError(GavelError):
    """Scores cannot be kept or read."""


class Annotations:
    """The scores of one directory."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE_NAME

    def scores(self, path: str, number: int) -> list[float | None] | None:
        """Of each member of a group, None for one that was left out; None for a group without any."""
        group = self._read().get((path, number))
        return None if group is None else [member.metrics.get(METRIC) for member in group]

    def places(self) -> set[tuple[str, int]]:
        """The groups that have scores: file and number."""
        return set(self._read())

    def save(self, path: str, number: int, group: TrajectoryGroup, scores: Sequence[float | None]) -> None:
        """Keeps one score in [0, 1] for each member; None leaves a member out.

        Raises `AnnotationError` for other numbers of scores, for none at all, and for a file that cannot be written.
        """
        known = [score for score in scores if score is not None]
        if len(scores) != len(group.trajectories) or not known or not all(0 <= score <= 1 for score in known):
            raise AnnotationError("a score from 0 to 10 is missing or out of bounds", "Score at least one member.")
        scored = group.model_copy(deep=True)
        for member, score in zip(scored.trajectories, scores, strict=True):
            member.metrics.pop(METRIC, None)
            member.metrics |= {} if score is None else {METRIC: score}
        scored.metadata[_SOURCE] = {"path": path, "number": number}
        with self._locked():
            groups = self._read() | {(path, number): scored}
            write_atomically(self.path, "".join(f"{to_line(each)}\n" for each in groups.values()), durable=True)

    def golden(self) -> list[GoldenGroup]:
        """Groups in which some member has a higher score than another, as a golden set."""
        found: list[GoldenGroup | None] = []
        for (path, number), group in self._read().items():
            members = [member for member in group if METRIC in member.metrics and member.messages()]
            scores, tools = [member.metrics[METRIC] for member in members], members[0].tools if members else None
            found.append(
                order_by_labels(f"{path} {number}", [], [member.messages() for member in members], scores, tools)
            )
        return [group for group in found if group is not None]

    def _read(self) -> dict[tuple[str, int], TrajectoryGroup]:
        if not is_inside(self.path.parent, self.path):
            raise AnnotationError(f"{self.path} is a link to a file elsewhere", "Copy that file here.")
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise AnnotationError(f"{self.path} cannot be read: {error}", "Move it away, or restore it.") from error
        found: dict[tuple[str, int], TrajectoryGroup] = {}
        for at, line in enumerate(lines, 1):
            try:
                group = from_row(json.loads(line))
                source = cast("dict[str, JsonValue]", group.metadata[_SOURCE])
                found[str(source["path"]), int(cast("int", source["number"]))] = group
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise AnnotationError(
                    f"line {at} of {self.path} holds no scored group: {error}", "Move the file away, or restore it."
                ) from error
        return found

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Keeps other threads, and other viewers of the same directory, out."""
        try:
            with self.path.with_name(f".{FILE_NAME}.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise AnnotationError(
                f"{self.path} cannot be written: {error.strerror or error}",
                "Check that there is room, and rights; or view a copy.",
            ) from error


def blind_order(path: str, number: int, members: int) -> list[int]:
    """In which order members are shown to a person: always the same for a group, and not that of the file."""
    order = list(range(members))
    random.Random(f"{path} {number}").shuffle(order)
    return order


def read_scores(fields: Mapping[str, str], members: int) -> list[float | None]:
    """The form's scores from 0 to 10, as 0 to 1. Raises `AnnotationError`."""
    texts = [fields.get(f"score-{number}", "").strip() for number in range(members)]
    try:
        scores = [_SCORE.validate_python(text) if text else None for text in texts]
    except ValidationError as error:
        raise AnnotationError(problem(error), "Scores are numbers from 0 to 10, or empty.") from error
    return [None if score is None else round(score / 10, 4) for score in scores]


_SCORE = TypeAdapter[float](Annotated[float, Field(ge=0, le=10)])
