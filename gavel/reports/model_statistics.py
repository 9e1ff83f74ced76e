"""Statistics of models that worked on the same held-out tasks: shares with intervals, and pass@k.

    pass_at_k(samples=10, passed=3, k=5)        # 0.9167
    share([1.0, 0.5, 0.0], trials=6)            # mean over tasks, with a 95 % interval that is never 0 wide

Samples of one task are alike, so intervals are over tasks. Plain numbers in, plain numbers out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class TaskMean:
    """A mean over tasks with its 95 % interval."""

    value: float | None
    """None = no task has it."""
    low: float | None
    high: float | None
    """None with fewer than two tasks."""
    tasks: int

    def text(self, digits: int = 2) -> str:
        """`0.88 (0.84 to 0.91)`."""
        if self.value is None:
            return "–"
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"

    def short(self) -> str:
        """`.88 (.84–.91)`, for narrow terminals."""
        if self.value is None:
            return "–"
        ends = [f"{end:.2f}".replace("0.", ".", 1) for end in (self.value, self.low, self.high) if end is not None]
        return f"{ends[0]} ({ends[1]}–{ends[2]})" if len(ends) == 3 else ends[0]


def share(values: Sequence[float], trials: int) -> TaskMean:
    """The mean of one share per task, with Wilson's interval (1927) at the effective number of trials.

    `trials`: all trials of all tasks, the most that the effective number can be; samples that agree within their tasks
    count for less (Korn and Graubard 1998). Where all shares are equal it is the number of tasks.
    """
    tasks = len(values)
    if tasks < 2:
        return TaskMean(fmean(values) if values else None, None, None, tasks)
    mean, error = fmean(values), variance(values) / tasks
    effective = min(mean * (1 - mean) / error, trials) if error > 1e-12 and 0 < mean < 1 else tasks
    spread = _Z95**2 / effective
    center = (mean + spread / 2) / (1 + spread)
    half = math.sqrt(max(mean * (1 - mean), 0.0) * spread + spread**2 / 4) / (1 + spread)
    return TaskMean(mean, max(0.0, center - half), min(1.0, center + half), tasks)


def mean_of_tasks(values: Sequence[float]) -> TaskMean:
    """The mean of one number per task, with Student's t interval; none where all tasks have the same number."""
    tasks = len(values)
    spread = variance(values) if tasks > 1 else 0.0
    if spread <= 1e-12:
        return TaskMean(fmean(values) if values else None, None, None, tasks)
    from scipy.stats import t  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    mean, quantile = fmean(values), float(t.ppf(0.975, tasks - 1))  # pyright: ignore[reportUnknownMemberType]
    half = quantile * math.sqrt(spread / tasks)
    return TaskMean(mean, mean - half, mean + half, tasks)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that one of `k` samples passes: the unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. 2021
    (arXiv 2107.03374). Raises `ValueError` for a `k` that is not from 1 to `samples`."""
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of a task, and k of at least 1; there are {samples}")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)
