"""Anchors from attempts that a person scored: `annotations.jsonl` of `gavel view`, or any file with such a metric.

judge = gavel.Judge("openai/gpt-5-mini", anchors=gavel.read_anchors("runs/annotations.jsonl"))
"""

from os import PathLike
from pathlib import Path

from gavel.judge.errors import JudgeError
from gavel.judge.panel.anchors import MAX_ANCHORS, Anchor, check_anchors
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.trajectory import Trajectory

HUMAN = "human"


def read_anchors(file: str | PathLike[str], *, metric: str = HUMAN, most: int = 3) -> list[Anchor]:
    """At most `most` attempts of the file (1 to 6), spread over what `metric` gives them, from the best to the worst.

    `metric`: from 0 to 1; attempts without it are passed over, and so are further ones of the same score. Anchors are
    attempts at the task that is judged, or at a similar one: take a file of one kind of task.

    Raises `JudgeError` where fewer than two scores are there, for one that is not from 0 to 1, and where one attempt
    has two scores; `GavelError` for a file that cannot be read.
    """
    if not 1 < most <= MAX_ANCHORS:
        raise JudgeError(f"most={most} is no number of anchors.", f"Take 2 to {MAX_ANCHORS}: two or three are enough.")
    members = [member for group in read_groups(Path(file)) for member in group]
    known: dict[float, Trajectory] = {}
    for member in members:
        if (score := _score(member.metrics.get(metric))) is not None:
            known.setdefault(score, member)
    if len(known) < 2:
        others = sorted({name for member in members for name in member.metrics} - {metric})
        raise JudgeError(
            f"{file} has {'no attempt' if not known else 'attempts of one score only'} for {metric}: anchors need two.",
            f"Score some (gavel view), or name another metric: {', '.join(others)}." if others else "Score some first.",
        )
    scores = sorted(known, reverse=True)
    count = min(most, len(scores))
    chosen = [scores[round(at * (len(scores) - 1) / (count - 1))] for at in range(count)]
    bare = {score: known[score].model_copy(update={"judgement": None, "reward": None}) for score in chosen}
    return list(check_anchors(Anchor(bare[score], score) for score in chosen))


def _score(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
