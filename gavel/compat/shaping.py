"""`gavel.Shaping` and `gavel.shape_group`: deprecated, since TrainConfig decides what of the scores the learner sees.

Shaping before training and TrainConfig.advantage compound (a shrunk score is shrunk again). The judgements of a shaped
group are unchanged; only its rewards are replaced.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

from gavel.judge.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.data.advantages import advantages

ShapingKind = Literal["raw", "centred", "rank", "shrunk"]

NEAR_TIE = "near_tie"
"""The group metric of a group whose scores differ by less than `Shaping.min_spread`."""
_RESIDUE = 1e-6


def _warn(name: str, stacklevel: int) -> None:
    warnings.warn(
        f"{name} is deprecated: set TrainConfig(advantage=…, minimal_spread=…) instead.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


@dataclass(frozen=True, slots=True)
class Shaping:
    """How the scores of a group become its rewards. Raises `JudgeError` for invalid values."""

    kind: ShapingKind = "raw"
    """`raw`: the scores. `centred`: less the group's mean. `rank`: mid-ranks, 0 to 1. `shrunk`: towards the mean."""
    min_spread: float = 0.0
    """A group whose scores differ by less than this gets equal rewards."""

    def __post_init__(self) -> None:
        _warn("gavel.Shaping", 4)  # above the generated __init__
        if self.kind not in get_args(ShapingKind):
            raise JudgeError(
                f"there is no shaping {self.kind!r}.", f"Choose one of: {', '.join(get_args(ShapingKind))}."
            )
        if not 0 <= self.min_spread <= 1:
            raise JudgeError(f"a minimal spread is a difference of scores, from 0 to 1, not {self.min_spread}.")


def shape_group(group: TrajectoryGroup, shaping: Shaping) -> TrajectoryGroup:
    """A copy of the group with shaped rewards; judgements, and rewards that are None or not finite, stay."""
    _warn("gavel.shape_group", 3)
    rewards = {n: t.reward for n, t in enumerate(group) if t.reward is not None and math.isfinite(t.reward)}
    errors = [(j := group.trajectories[n].judgement) and j.standard_error for n in rewards]
    scores = list(rewards.values())
    shaped = dict(zip(rewards, shape_rewards(scores, errors, shaping), strict=True))
    metrics, logs = dict(group.metrics), list(group.logs)
    if scores and _RESIDUE < (spread := max(scores) - min(scores)) < shaping.min_spread - _RESIDUE:
        metrics[NEAR_TIE] = True
        logs.append(f"no signal: the scores differ by {spread:.3g}, less than {shaping.min_spread:g}")
    members = [t.model_copy(update={"reward": shaped.get(n, t.reward)}) for n, t in enumerate(group)]
    return group.model_copy(update={"trajectories": members, "metrics": metrics, "logs": logs})


def shape_rewards(scores: Sequence[float], errors: Sequence[float | None], shaping: Shaping) -> list[float]:
    """The rewards of one group's finite scores, in order; `errors` are their standard errors."""
    if not scores:
        return []
    shaped = _shaped(scores, errors, shaping.kind)
    spread = max(scores) - min(scores)
    if spread <= _RESIDUE or spread < shaping.min_spread - _RESIDUE:
        return [fmean(shaped)] * len(shaped)
    return shaped


def _shaped(scores: Sequence[float], errors: Sequence[float | None], kind: ShapingKind) -> list[float]:
    mean = fmean(scores)
    alone = len(scores) == 1
    match kind:
        case "raw":
            return list(scores)
        case "centred":
            return [score - mean for score in scores]
        case "rank":
            return [0.5] if alone else [0.5 + rank for rank in advantages(scores, "rank")]
        case "shrunk":
            return list(scores) if alone else [mean + value for value in advantages(scores, "shrunk", errors)]
