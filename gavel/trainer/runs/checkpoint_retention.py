"""Which checkpoints of a run stay: the newest, and the best by a metric.

steps_to_keep([1, 2, 3, 4], {1: 0.9, 2: 0.5, 4: 0.7}, keep_last=1, keep_best=1)      {4, 1}
"""

from collections.abc import Mapping, Sequence


def steps_to_keep(saved: Sequence[int], values: Mapping[int, object], *, keep_last: int, keep_best: int) -> set[int]:
    """Of the saved steps, in ascending order, the last and those with the highest values, the newer among equals.

    A step without a number among `values` is not among the best.
    """
    scored = sorted((value, step) for step in saved if isinstance(value := values.get(step), int | float))
    best = [step for _, step in scored[max(0, len(scored) - keep_best) :]]
    return {*best, *saved[max(0, len(saved) - keep_last) :]}
