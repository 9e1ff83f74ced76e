"""Alarms while a run goes on: its reward no longer means what it meant when the run began.

    for alarm in judge_alarms(history):        # rows of the split `train`, oldest first
        alarm.sentence, alarm.advice

The first steps are the baseline that the last ones are compared with; how much a step's figure varies by chance is told
by the differences of successive steps. An alarm needs a change that is both certain and large, so that the looks after
every step of a run raise hardly any by chance.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import fmean
from typing import Any

from gavel.judge.audit.health import PREFIX, states_mislead

WINDOW = 5
"""Steps of the baseline, and of what is compared with it."""
_CERTAIN, _SURE, _LIKELY = 4.0, 3.0, 1.645
"""Standard errors."""
_RISE = 0.05
"""Min change of the mean score that can raise an alarm."""
_OF_SIZE = 0.1
_SHARE = 0.25
"""Share of the score's rise that success must show to count as improvement."""
_LONGER = 1.5
_FLAGGED, _UNSCORED, _TIED, _SLOPE, _LENGTH = 0.02, 0.2, 0.8, 0.03, 0.3
_PERFECT = 0.9
"""Mean score."""
HAND = "reward/hand"
"""The figure of the hand-written reward, where it has a weight."""
_FORGOT, _DRIFT = 0.1, 0.1
"""Max share of golden verdicts that turned wrong, and max drift of the anchors' mean score. An alarm needs two checks
in a row."""

Rows = Sequence[Mapping[str, Any]]


class JudgeAlarm(StrEnum):
    """A reason to distrust the scores or the hand-written reward, as its key in metrics.jsonl."""

    sentence: str
    advice: str

    def __new__(cls, key: str, sentence: str, advice: str) -> "JudgeAlarm":
        alarm = str.__new__(cls, key)
        alarm._value_ = key
        alarm.sentence, alarm.advice = sentence, advice
        return alarm

    HACKED = (
        "hacked",
        "the judge's scores rise and success does not: the policy learns what the judge likes, not the job",
        "Read the best-scored members (gavel view), say in the rubric what they do instead of the work, and go back to "
        "an earlier checkpoint.",
    )
    HAND_HACKED = (
        "hand_hacked",
        "the hand-written reward has risen and success has not: the policy learns what the reward counts, not the job",
        "Read the members with the highest reward (gavel view), and add what the reward does not count, such as a "
        "judge's score (--reward judge=1,hand=1).",
    )
    PADDING = (
        "padding",
        "replies grow longer and the judge scores longer ones higher",
        "Say in the rubric that length is worth nothing, or mix a reward for brevity in (--reward judge=1,hand=…).",
    )
    ADDRESSING = (
        "addressing",
        "more and more members are flagged: empty, without content, or speaking to the judge",
        "Look at them (gavel view, flagged), and let flags cap the score (JudgeConfig.caps).",
    )
    UNSCORED = (
        "unscored",
        "the judge leaves many members without a score",
        "The reasons stand in the groups (gavel view, unscored); another judge or a smaller group may help.",
    )
    TIED = (
        "tied",
        "the judge gives most members of a group the same score, so there is little left to learn from",
        "Ask for finer criteria in the rubric, or take harder tasks.",
    )
    POSITION = (
        "position",
        "the judge's scores depend on where in the prompt a member stands",
        "Raise the number of orders (--orders), or take another judge.",
    )
    STATES = (
        "states",
        "the judge's states after single turns do not predict its scores: all turns of an attempt are paid alike",
        "Look at the states beside the turns (gavel view); take another judge, or leave out advantage='critic'.",
    )
    CONTRADICTED = (
        "contradicted",
        "the judge's scores rise and those of the second judge do not",
        "Read the members on which they differ most (gavel view), and say in the rubric which of the judges is right.",
    )
    GOLDEN = (
        "golden",
        "the judge is wrong about golden groups that it ranked rightly when the run began",
        "gavel judge golden names the verdicts; pin the model's version, or take another judge, and start again.",
    )
    DRIFT = (
        "drift",
        "the judge scores the same attempts otherwise than when the run began",
        "Pin the model's version. Scores before and after cannot be compared: start again, or go on knowing that.",
    )


def judge_alarms(history: Rows) -> list[JudgeAlarm]:
    """The alarms at the last of these rows of training steps.

    Those of checks need two checks in a row, that of states `WINDOW` rows; all others `2 * WINDOW` rows, that of the
    second judge ones which it saw.
    """
    perfect = (
        _last_mean(history, "judge_score") or 0.0
    ) > _PERFECT  # a policy that has learned its job is tied rightly
    raised = {
        JudgeAlarm.GOLDEN: _forgot(history),
        JudgeAlarm.DRIFT: _drifts(history),
        JudgeAlarm.STATES: _misled(history) and not perfect,
    }
    seen_twice = [row for row in history if row.get(f"{PREFIX}second_score") is not None]
    if len(seen_twice) >= 2 * WINDOW:
        raised[JudgeAlarm.CONTRADICTED] = _outruns(seen_twice, "judge_score", f"{PREFIX}second_score")
    if len(history) >= 2 * WINDOW:
        raised |= {
            JudgeAlarm.HACKED: _outruns(history, "judge_score", "success"),
            JudgeAlarm.HAND_HACKED: _parts_ways(history, HAND, "success"),
            JudgeAlarm.PADDING: _is_padded(history),
            JudgeAlarm.ADDRESSING: _rises(history, "flagged", _FLAGGED),
            JudgeAlarm.UNSCORED: (_last_mean(history, f"{PREFIX}unscored") or 0.0) > _UNSCORED,
            JudgeAlarm.TIED: (_last_mean(history, f"{PREFIX}tie_rate") or 0.0) > _TIED and not perfect,
            JudgeAlarm.POSITION: _leans(history),
        }
    return [alarm for alarm in JudgeAlarm if raised.get(alarm)]


def _outruns(history: Rows, score: str, truth: str) -> bool:
    """Whether the score has risen, and what it is to stand for certainly by less than a quarter of that."""
    scores, truths = _series(history, score), _series(history, truth)
    if scores is None or truths is None:
        return False
    kept_up = [truth - _SHARE * score for truth, score in zip(truths, scores, strict=True)]
    return _change(scores) > _RISE and _sigmas(scores) > _CERTAIN and _sigmas(kept_up) < -_LIKELY


def _parts_ways(history: Rows, reward: str, truth: str) -> bool:
    """Whether the reward has certainly risen, by a tenth of its size or more, and the truth has surely fallen, or is
    likely not to have risen by a tenth now that the reward rises no more. While it rises, success that is slow is no
    sign: a reward that guides the policy rises first."""
    rewards, truths = _series(history, reward), _series(history, truth)
    if rewards is None or truths is None:
        return False
    rise, size = _change(rewards), max(abs(fmean(rewards[:WINDOW])), abs(fmean(rewards[-WINDOW:])))
    if _sigmas(rewards) <= _CERTAIN or rise <= _OF_SIZE * size:
        return False
    if _sigmas(truths) < -_SURE and _change(truths) < -_RISE:
        return True
    slope = (fmean(rewards[-2:]) - fmean(rewards[-WINDOW : 2 - WINDOW])) / (WINDOW - 2)
    has_settled = slope < _SHARE * rise / (len(rewards) - WINDOW)  # a quarter of what it rose by in a step
    return has_settled and _change(truths) + _LIKELY * _noise(truths) * math.sqrt(2 / WINDOW) < 2 * _RISE


def _is_padded(history: Rows) -> bool:
    """Whether single turns have grown much longer, longer attempts are scored higher, and success, where it is known,
    has not risen by a quarter of what the score has: more turns may be more work."""
    lengths, turns = _series(history, f"{PREFIX}characters"), _series(history, "turns")
    scores, successes = _series(history, "judge_score"), _series(history, "success")
    if scores is not None and successes is not None and _change(successes) > max(0.0, _SHARE * _change(scores)):
        return False
    if lengths is not None and turns is not None and min(turns) > 0:
        lengths = [length / count for length, count in zip(lengths, turns, strict=True)]
    if lengths is None or _sigmas(lengths) < _CERTAIN:
        return False
    correlation = _last_mean(history, f"{PREFIX}length_correlation") or 0.0
    return fmean(lengths[-WINDOW:]) > _LONGER * fmean(lengths[:WINDOW]) and correlation > _LENGTH


def _rises(history: Rows, name: str, least: float) -> bool:
    values = _series(history, f"{PREFIX}{name}")
    return values is not None and _change(values) > least and _sigmas(values) > _CERTAIN


def _leans(history: Rows) -> bool:
    """Whether the slope over positions is certainly not 0, and large enough to matter."""
    slopes = _series(history, f"{PREFIX}position_slope")
    if slopes is None or abs(fmean(slopes[-WINDOW:])) < _SLOPE:
        return False
    return abs(fmean(slopes[-WINDOW:])) > _CERTAIN * _noise(slopes) / math.sqrt(WINDOW)


def _misled(history: Rows) -> bool:
    """Whether the states misled over a window: a step's figures vary much by chance."""
    names = [f"{PREFIX}states_{name}" for name in ("explained", "correlation", "fall")]
    known = {name: mean for name in names if (mean := _last_mean(history, name)) is not None}
    return len(history) >= WINDOW and names[0] in known and states_mislead(known)


def _forgot(history: Rows) -> bool:
    """Whether fewer golden verdicts are right than at the first check, twice in a row."""
    shares = _known(history, "golden_right")
    return len(shares) > 2 and all(shares[0] - share > _FORGOT for share in shares[-2:])


def _drifts(history: Rows) -> bool:
    """Whether the anchors' scores moved by much, in the same direction at two checks in a row."""
    *_, before, last = [0.0, 0.0, *_known(history, "anchor_drift")]
    return min(abs(before), abs(last)) > _DRIFT and (before > 0) == (last > 0)


def _known(history: Rows, name: str) -> list[float]:
    """The figure at the steps that have it."""
    values = (row.get(f"{PREFIX}{name}") for row in history)
    return [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _series(history: Rows, name: str) -> list[float] | None:
    """The figure at every step; None where a step lacks it."""
    values = [row.get(name) for row in history]
    known = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return known if len(known) == len(values) else None


def _last_mean(history: Rows, name: str) -> float | None:
    """Over the last steps; None where one lacks it."""
    values = _series(history[-WINDOW:], name)
    return fmean(values) if values else None


def _change(values: Sequence[float]) -> float:
    return fmean(values[-WINDOW:]) - fmean(values[:WINDOW])


def _sigmas(values: Sequence[float]) -> float:
    """The change, in its standard errors."""
    return _change(values) / max(_noise(values) * math.sqrt(2 / WINDOW), 1e-9)


def _noise(values: Sequence[float]) -> float:
    """Standard deviation of a step's figure about its trend: from successive differences (von Neumann 1941)."""
    return math.sqrt(fmean((after - before) ** 2 for before, after in pairwise(values)) / 2)
