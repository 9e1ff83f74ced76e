"""Which checkpoints of a run stay: the newest, and the best by a metric.

steps_to_keep([1, 2, 3, 4], {1: 0.9, 2: 0.5, 4: 0.7}, keep_last=1, keep_best=1)      {4, 1}
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal


def steps_to_keep(saved: Sequence[int], values: Mapping[int, object], *, keep_last: int, keep_best: int) -> set[int]:
    """Of the saved steps, in ascending order, the last and those with the highest values, the newer among equals.

    A step without a number among `values` is not among the best.
    """
    scored = sorted((value, step) for step in saved if isinstance(value := values.get(step), int | float))
    best = [step for _, step in scored[max(0, len(scored) - keep_best) :]]
    return {*best, *saved[max(0, len(saved) - keep_last) :]}


def chosen_step(
    saved: Sequence[int], rows: Iterable[Mapping[str, Any]], step: int | Literal["latest", "best"], best_by: str
) -> int | None:
    """The saved step that is meant, None where there is none. best: by `split/metric` in rows of metrics.jsonl."""
    if step == "latest":
        return saved[-1] if saved else None
    if step != "best":
        return step
    split, _, metric = best_by.partition("/")
    values = {row["step"]: row[metric] for row in rows if row.get("split") == split and metric in row}
    return next(iter(steps_to_keep(saved, values, keep_last=0, keep_best=1)), None)
