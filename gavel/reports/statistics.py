# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""Statistics of runs over their seeds, and of models over the tasks they share: intervals, equivalence, pass@k.

    paired_difference([-0.01, 0.0, -0.02, 0.01, -0.01], margin=0.03).verdict      "equivalent within ±0.03"
    share([1.0, 0.5, 0.0], trials=6)            # mean over tasks, with a 95 % interval that is never 0 wide

A difference that the seeds do not show is "not shown", never "none". Samples of one task are alike, so intervals are
over tasks. Plain numbers in, plain numbers out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

Z95 = 1.959964
"""The normal distribution's quantile for 95 %."""


@dataclass(frozen=True, slots=True)
class MeanOverSeeds:
    """A mean with its 95 % interval by Student's t over the seeds."""

    value: float | None
    half_width: float | None
    """None with fewer than two seeds, or where all have the same value: that is no sign of precision."""
    seeds: int

    def text(self, sign: str = "") -> str:
        """`0.88 ± 0.01`; without an interval the mean alone."""
        width = "" if self.half_width is None else f" ± {self.half_width:.2f}"
        return "–" if self.value is None else f"{self.value:{sign}.2f}{width}"


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Differences of two rewards over the same seeds."""

    seeds: int
    mean: float
    low: float | None
    high: float | None
    """95 % interval by Student's t; None where there is none."""
    margin: float
    verdict: str
    """`equivalent within ±0.03`, `different`, or `inconclusive: …`."""
    equivalent: bool


def mean_over_seeds(values: Sequence[float]) -> MeanOverSeeds:
    """The mean of one value per seed."""
    count = len(values)
    if count < 2 or (spread := stdev(values)) <= 1e-12:
        return MeanOverSeeds(fmean(values) if values else None, None, count)
    from scipy.stats import t

    return MeanOverSeeds(fmean(values), float(t.ppf(0.975, count - 1)) * spread / math.sqrt(count), count)


def paired_difference(differences: Sequence[float], margin: float) -> PairedDifference:
    """The statistics of per-seed differences. `margin` > 0: the largest difference that does not matter.

    Equivalent: the whole 95 % interval is inside the margin, which is stricter than two one-sided tests at 5 %.
    """
    seeds, mean, half = len(differences), fmean(differences), mean_over_seeds(differences).half_width
    if half is None:
        why = "one seed has no interval" if seeds < 2 else "the seeds' differences are all the same"
        return PairedDifference(seeds, mean, None, None, margin, f"inconclusive: {why}", equivalent=False)
    low, high = mean - half, mean + half
    equivalent = -margin < low and high < margin
    if equivalent:
        verdict = f"equivalent within ±{margin:g}"
    elif low > 0 or high < 0:
        verdict = "different" + (f", by more than {margin:g}" if low > margin or high < -margin else "")
    else:
        verdict = f"inconclusive: too few seeds for a margin of {margin:g}"
    return PairedDifference(seeds, mean, low, high, margin, verdict, equivalent)


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
        ends = ["–" if end is None else f"{end:.{digits}f}" for end in (self.value, self.low, self.high)]
        return ends[0] if self.low is None else f"{ends[0]} ({ends[1]} to {ends[2]})"

    def short(self) -> str:
        """`.88 (.84–.91)`, for narrow terminals."""
        return self.text().replace("0.", ".").replace(" to ", "–")


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
    spread = Z95**2 / effective
    center = (mean + spread / 2) / (1 + spread)
    half = math.sqrt(max(mean * (1 - mean), 0.0) * spread + spread**2 / 4) / (1 + spread)
    return TaskMean(mean, max(0.0, center - half), min(1.0, center + half), tasks)


def mean_of_scores(values: Sequence[float]) -> TaskMean:
    """The mean of one score from 0 to 1 per task, with Student's t interval cut to that range; none where all tasks
    have the same score."""
    mean = mean_over_seeds(values)
    if mean.value is None or mean.half_width is None:
        return TaskMean(mean.value, None, None, mean.seeds)
    low, high = mean.value - mean.half_width, mean.value + mean.half_width
    return TaskMean(mean.value, max(0.0, low), min(1.0, high), mean.seeds)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that one of `k` samples passes: the unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. 2021
    (arXiv 2107.03374). Raises `ValueError` for a `k` that is not from 1 to `samples`."""
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of a task, and k of at least 1; there are {samples}")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)
