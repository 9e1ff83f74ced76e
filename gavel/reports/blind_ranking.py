"""Held-out attempts of compared runs, ranked in pairs by a judge that is not told whose they are.

    judge beats hand in 0.71 ± 0.05 of the tasks; a tie is half

A group holds the attempts of all contenders at one task, sampled with one seed. No run was trained on these verdicts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

from gavel.base.text import counted
from gavel.reports.model_table import win_rate
from gavel.reports.statistics import MeanOverSeeds, TaskMean, mean_over_seeds, with_interval
from gavel.scenarios.group import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class WinRate:
    """The rate at which one contender's attempt is scored above another's; a tie is half."""

    over_seeds: MeanOverSeeds
    by_seed: Mapping[int, TaskMean]

    @property
    def text(self) -> str:
        """The rate with an interval over seeds, or over the tasks of one seed, as text."""
        if len(self.by_seed) == 1:
            return next(iter(self.by_seed.values())).text()
        return with_interval(self.over_seeds)


@dataclass(frozen=True, slots=True)
class BlindRanking:
    judges: Sequence[str]
    rubric: str
    cost: str
    """Empty where no server was asked."""
    contenders: Sequence[str]
    overall: Mapping[str, WinRate]
    """Win rates against all others."""
    rates: Mapping[tuple[str, str], WinRate]
    """Win rates of (first, second), in both directions; without pairs that no task compares."""
    tasks: int
    """Groups that were compared, over all seeds."""
    unscored: int
    """Attempts that the judge gave no score."""
    why_unscored: str = ""
    """The commonest reason for that."""

    @property
    def unscored_text(self) -> str:
        """Empty where each has a score."""
        if not self.unscored:
            return ""
        why = f" (mostly: {self.why_unscored.rstrip('.')})" if self.why_unscored else ""
        return f"{counted(self.unscored, 'attempt')} unscored{why}"

    def beats(self, one: str, other: str) -> WinRate | None:
        """The win rate of one over the other; None for a contender and itself, and where no task compares the two."""
        return self.rates.get((one, other))

    @property
    def pairs(self) -> dict[tuple[str, str], WinRate]:
        """Every pair of contenders once, in the order of `contenders`."""
        return {pair: self.rates[pair] for pair in combinations(self.contenders, 2) if pair in self.rates}

    def as_json(self) -> dict[str, Any]:
        def figures(rate: WinRate) -> dict[str, Any]:
            seeds = {str(seed): [mean.value, mean.low, mean.high] for seed, mean in rate.by_seed.items()}
            return {"value": rate.over_seeds.value, "half_width": rate.over_seeds.half_width, "by_seed": seeds}

        return {
            "judges": list(self.judges),
            "rubric": self.rubric,
            "cost": self.cost,
            "groups": self.tasks,
            "unscored": self.unscored,
            "why_unscored": self.why_unscored,
            "wins": {name: figures(rate) for name, rate in self.overall.items()},
            "pairs": [{"reward": one, "against": other, **figures(rate)} for (one, other), rate in self.pairs.items()],
        }


def blind_ranking(
    judged: Mapping[int, Sequence[TrajectoryGroup]], contenders: Sequence[str], judges: Sequence[str], **more: str
) -> BlindRanking:
    """The ranking from the judged groups by seed, whose members' metadata name their contenders. `more`: rubric and
    cost."""
    groups = [group for of_seed in judged.values() for group in of_seed]
    asked = [group for group in groups if group.judgement is None or group.judgement.status != "degenerate"]
    members = [member for group in asked for member in group]
    unscored = [member.judgement for member in members if member.judgement is None or member.judgement.score is None]
    why = Counter(judgement.reason for judgement in unscored if judgement is not None and judgement.reason)
    rates = {pair: _rate(judged, *pair) for pair in permutations(contenders, 2)}
    return BlindRanking(
        judges=judges,
        rubric=more.get("rubric", ""),
        cost=more.get("cost", ""),
        contenders=contenders,
        overall={name: _rate(judged, name) for name in contenders},
        rates={pair: rate for pair, rate in rates.items() if rate.by_seed},
        tasks=len(groups),
        unscored=len(unscored),
        why_unscored=why.most_common(1)[0][0] if why else "",
    )


def _rate(judged: Mapping[int, Sequence[TrajectoryGroup]], one: str, other: str | None = None) -> WinRate:
    by_seed = {seed: win_rate(groups, one, other) for seed, groups in judged.items()}
    known = {seed: mean for seed, mean in by_seed.items() if mean.value is not None}
    return WinRate(mean_over_seeds([mean.value for mean in known.values() if mean.value is not None]), known)
