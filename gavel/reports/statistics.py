# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""Statistics of runs over their seeds, and of models over the tasks they share: intervals, equivalence, pass@k.

    paired_difference([-0.01, 0.0, -0.02, 0.01, -0.01], margin=0.03).verdict      "equivalent within ±0.03"
    share([1.0, 0.5, 0.0], trials=6)            # mean over tasks, with a 95 % interval that is never 0 wide

A difference that the seeds do not show is "not shown", never "none". Samples of one task are alike, so intervals are
over tasks. Plain numbers in, plain numbers out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from gavel.judge.audit.bootstrap import IntervalEstimate, mean_over_groups

Curve = Mapping[int, float]
"""Value by training step."""


@dataclass(frozen=True, slots=True)
class MeanOverSeeds:
    """A mean with its 95 % interval by Student's t over the seeds."""

    value: float | None
    half_width: float | None
    """None with fewer than two seeds, or where all have the same value: that is no sign of precision."""
    seeds: int


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
    """`equivalent within ±0.03`, `different`, or `not shown: …`."""

    @property
    def equivalent(self) -> bool:
        return self.low is not None and self.high is not None and -self.margin < self.low <= self.high < self.margin


def steps_to(curve: Curve, threshold: float) -> int | None:
    """The first evaluated step whose value is at least the threshold; None if none is."""
    return next((step for step, value in sorted(curve.items()) if value >= threshold), None)


def mean_over_seeds(values: Sequence[float]) -> MeanOverSeeds:
    """The mean of one value per seed."""
    if not values:
        return MeanOverSeeds(None, None, 0)
    error = _standard_error(values)
    return MeanOverSeeds(fmean(values), None if error is None else _t_quantile(len(values)) * error, len(values))


def paired_difference(differences: Sequence[float], margin: float) -> PairedDifference:
    """The statistics of per-seed differences. `margin` > 0: the largest difference that does not matter.

    Equivalent: the whole 95 % interval is inside the margin, which is stricter than two one-sided tests at 5 %.
    """
    seeds, mean = len(differences), fmean(differences)
    error = _standard_error(differences)
    if error is None:
        why = "one seed has no interval" if seeds < 2 else "the seeds' differences are all the same"
        return PairedDifference(seeds, mean, None, None, margin, f"not shown: {why}")
    half = _t_quantile(seeds) * error
    low, high = mean - half, mean + half
    if -margin < low and high < margin:
        verdict = f"equivalent within ±{margin:g}"
    elif low > 0 or high < 0:
        verdict = "different" + (f", by more than {margin:g}" if low > margin or high < -margin else "")
    else:
        verdict = f"not shown: neither a difference nor equivalence within ±{margin:g}"
    return PairedDifference(seeds, mean, low, high, margin, verdict)


def with_interval(mean: MeanOverSeeds, sign: str = "") -> str:
    """`0.88 ± 0.01`; without an interval the mean alone."""
    if mean.value is None:
        return "–"
    width = "" if mean.half_width is None else f" ± {mean.half_width:.2f}"
    return f"{mean.value:{sign}.2f}{width}"


def curve_over_seeds(curves: Sequence[Curve]) -> dict[int, IntervalEstimate]:
    """The mean at every step that all seeds have, with a percentile bootstrap interval over seeds."""
    if not curves:
        return {}
    common = set(curves[0]).intersection(*curves)
    return {step: mean_over_groups([curve[step] for curve in curves]) for step in sorted(common)}


def change(curve: Curve) -> float | None:
    """The mean of the last third of the points less that of the first third; None with fewer than two points."""
    values = [value for _, value in sorted(curve.items())]
    if len(values) < 2:
        return None
    third = max(len(values) // 3, 1)
    return fmean(values[-third:]) - fmean(values[:third])


def _standard_error(values: Sequence[float]) -> float | None:
    spread = stdev(values) if len(values) > 1 else 0.0
    return spread / math.sqrt(len(values)) if spread > 1e-12 else None


def _t_quantile(seeds: int) -> float:
    from scipy.stats import t  # pyright: ignore[reportUnknownVariableType]

    return float(t.ppf(0.975, seeds - 1))


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
