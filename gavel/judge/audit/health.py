"""A judge's health in one step of training, from the step's judged groups: figures to be watched from step to step.

    judge_health(groups)       # {"health/unscored": 0.0, "health/position_slope": -0.01, …}

They need no call to a judge, and no reference but `success` where the members have it. A figure that is not defined for
the step is left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from gavel.judge.audit.agreement import mean_kendall_tau, score_pairs
from gavel.judge.audit.bias import bias_report
from gavel.judge.stats import center, centred_sums, characters_written
from gavel.scenarios.group import TrajectoryGroup

PREFIX = "health/"
_TRUTH = "success"
_BIASES = ("tie_rate", "length_correlation", "flip_rate", "position_slope")
_RESIDUE = 1e-12
_NOTHING, _WEAK = 0.01, 0.35
"""An explained share of the variance, or a fall, that is none; a correlation that is too low to pay turns by."""


def judge_health(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """By name with the prefix `health/`; empty where no group was judged.

    unscored, flagged: shares of the members, unscored without groups of identical ones, which no judge is asked about.
    tie_rate, flip_rate, position_slope: as in `BiasReport`. order_agreement: mean of the groups' own.
    length_correlation: Pearson's r of score and log characters, each less its group's mean; characters: mean that an
    agent wrote. success_tau: mean within-group Kendall tau-b of score and success; success_gap: mean score less mean
    success. With states, also the figures of `states_health`.
    """
    judged = [group for group in groups if group.judgement is not None]
    members = [member for group in judged for member in group]
    if not members:
        return {}
    shown = [each for group in judged if group.judgement and group.judgement.status != "degenerate" for each in group]
    found: dict[str, float | None] = {
        "unscored": _mean([float(each.judgement is None or each.judgement.score is None) for each in shown]),
        "flagged": fmean(bool(each.judgement and each.judgement.flags) for each in members),
        "characters": fmean(map(characters_written, members)),
        "order_agreement": _mean([group.judgement.order_agreement for group in judged if group.judgement]),
    }
    if any(each.judgement and each.judgement.score is not None for each in members):
        bias = bias_report(judged)
        found |= {name: getattr(bias, name).value for name in _BIASES}
    pairs = [score_pairs(group, _TRUTH) for group in judged]
    known = [pair for of_group in pairs for pair in of_group]
    if known:
        found["success_tau"] = mean_kendall_tau(pairs)
        found["success_gap"] = fmean(score - truth for score, truth in known)
    return {f"{PREFIX}{name}": value for name, value in found.items() if value is not None} | states_health(judged)


def states_health(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """How well states before the last turn predict the scores; empty without such states.

    Both are taken at each turn less their means over the members that went on there, so that how long attempts last
    explains nothing. states_explained: 1 - Σ (score - state)² / Σ score², below 0 where a state is further from the
    score than that mean is. states_correlation: Pearson's r. states_fall: mean largest fall from one turn to the next,
    of members below their group's mean. states_lost: share of the votes whose states cannot be used.
    """
    xx = yy = xy = 0.0
    falls: list[float] = []
    votes: list[bool] = []
    for group in groups:
        judged = [each.judgement for each in group if each.judgement and each.judgement.score is not None]
        asked = group.judgement is not None and (group.judgement.settings or {}).get("states")
        if not asked and not any(each.states for each in judged):
            continue
        votes += [not vote.states for each in judged for vote in each.votes]
        scores = [each.score or 0.0 for each in judged]
        paths = [[0.0] for _ in judged]
        for turn in range(max((len(each.states) for each in judged), default=0)):
            there = [number for number, each in enumerate(judged) if turn < len(each.states) - 1]
            states = [judged[number].states[turn] for number in there]
            sums = centred_sums([(state, scores[number]) for number, state in zip(there, states, strict=True)])
            xy, xx, yy = xy + sums[0], xx + sums[1], yy + sums[2]
            for number, state in zip(there, center(states), strict=True):
                paths[number].append(state)
        below = [path for path, score in zip(paths, scores, strict=True) if len(path) > 1 and score < fmean(scores)]
        falls += [max(before - after for before, after in pairwise(path)) for path in below]
    found = {f"{PREFIX}states_lost": fmean(votes)} if votes else {}
    if yy > _RESIDUE:
        found[f"{PREFIX}states_explained"] = (2 * xy - xx) / yy
        found[f"{PREFIX}states_correlation"] = xy / math.sqrt(xx * yy) if xx > _RESIDUE else 0.0
    return found | ({f"{PREFIX}states_fall": fmean(falls)} if falls else {})


def states_mislead(figures: Mapping[str, float]) -> bool:
    """Whether the states of `states_health` say next to nothing of the scores, or fall nowhere."""
    least = {"states_explained": _NOTHING, "states_fall": _NOTHING, "states_correlation": _WEAK}
    return any(figures.get(f"{PREFIX}{name}", 1.0) <= bound for name, bound in least.items())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
