"""Statistics that several wings of the judge share: means with errors, intervals, agreement of orders, position bias.

mean_and_error([0.2, 0.4], [1.0, 1.0])                     (0.3, 0.1)
centred_positions(3)                                       [-1.0, 0.0, 1.0]
order_agreement([{0: 0.9, 1: 0.1}, {0: 0.1, 1: 0.9}])      -1.0: what is shown first wins
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats.row import is_list, is_object
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory

_MIN_BALLOTS = 50
_MIN_SLOPE = 0.1
_MIN_ERRORS = 4
"""A bias is reported from this many ballots on, when its slope exceeds this score and this many standard errors."""
_MIN_GROUPS, _MIN_EXCESS = 20, 0.1
_RESIDUE = 1e-12


def weighted_mean(scores: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean of at least one vote."""
    mean = math.fsum(w * x for w, x in zip(weights, scores, strict=True)) / math.fsum(weights)
    # Rounded, so that equal votes have exactly their common value as mean.
    return min(max(round(mean, 12), min(scores)), max(scores))


def mean_and_error(scores: Sequence[float], weights: Sequence[float]) -> tuple[float, float | None]:
    """The same, and its standard error (None with fewer than two votes).

    The error is that of a ratio estimator, sqrt(n/(n-1) · Σ w²(x - mean)²) / Σ w; with equal weights it is the
    usual sd/√n.
    """
    mean, n = weighted_mean(scores, weights), len(scores)
    if n < 2:
        return mean, None
    squares = math.fsum((w * (x - mean)) ** 2 for w, x in zip(weights, scores, strict=True))
    return mean, math.sqrt(n / (n - 1) * squares) / math.fsum(weights)


def centred_sums(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Σxy, Σx² and Σy² of pairs, each side less its mean."""
    xs, ys = center([x for x, _ in pairs]), center([y for _, y in pairs])
    xy, xx, yy = (math.fsum(a * b for a, b in zip(*sides, strict=True)) for sides in ((xs, ys), (xs, xs), (ys, ys)))
    return xy, xx, yy


def center(values: Sequence[float]) -> list[float]:
    """The values less their mean; exact zeros for equal values, empty for none."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = fmean(values)
    return [value - mean for value in values]


def expected_scores(scores: Sequence[float], states: Sequence[Sequence[float]]) -> list[list[float]]:
    """What a group's members were to score after each turn but the last, from the judge's states of them.

    At each turn the states less their mean, plus the mean score of the members that went on there; a turn of one member
    has the shift of the turn before. So a judge that expects too much of everybody, or too much at first, is put right.
    A member's states may be empty.
    """
    found: list[list[float]] = [[] for _ in scores]
    shift = 0.0
    for turn in range(max(map(len, states), default=0)):
        there = [number for number, own in enumerate(states) if turn < len(own) - 1]
        if len(there) > 1:
            shift = math.fsum(scores[number] - states[number][turn] for number in there) / len(there)
        for number in there:
            found[number].append(states[number][turn] + shift)
    return found


def score_interval(judgement: Judgement, level: float = 0.9) -> tuple[float, float] | None:
    """The interval in which the score would lie over all orders, with probability `level`; None without an error.

    score ± t·SE with Student's t at the error's degrees of freedom, cut at 0 and 1.
    """
    if judgement.score is None or judgement.standard_error is None:
        return None
    from scipy.stats import norm, t  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    freedom, tail = judgement.degrees_of_freedom, 0.5 + level / 2
    quantile = norm.ppf(tail) if freedom is None else t.ppf(tail, freedom)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    width = float(quantile) * judgement.standard_error  # pyright: ignore[reportUnknownArgumentType]
    return max(0.0, judgement.score - width), min(1.0, judgement.score + width)


def centred_positions(shown: int) -> list[float]:
    """The positions in a prompt of `shown` members, evenly spaced from -1 (first) to 1 (last)."""
    return [2 * position / (shown - 1) - 1 for position in range(shown)] if shown > 1 else [0.0] * shown


def order_agreement(orders: Iterable[Mapping[int, float]]) -> float | None:
    """Kendall's tau between two orders, over all of them together, of the members that both tell apart.

    From -1 (each two orders contradict each other) to 1, by the scores of each order; None = no two of them tell the
    same two members apart.
    """
    above = Counter(
        (one, other) if first > second else (other, one)
        for scores in orders
        for (one, first), (other, second) in combinations(sorted(scores.items()), 2)
        if first != second
    )
    alike = sum(times * (times - 1) // 2 for times in above.values())
    opposed = sum(times * above.get((other, one), 0) for (one, other), times in above.items()) // 2
    return (alike - opposed) / (alike + opposed) if alike + opposed else None


@dataclass(slots=True)
class PositionBias:
    """The slope of scores over the positions in a prompt, over ballots that show the same number of members.

    Positions are randomized over members, so a mean slope is position bias of the judge.
    """

    ballots: int = 0
    _slopes: float = 0.0
    _squared_slopes: float = 0.0
    """Sums over the ballots."""

    def add(self, scores: Sequence[float]) -> None:
        """Adds the scores of one ballot, in the order shown."""
        xy, xx, _ = centred_sums([*zip(centred_positions(len(scores)), scores, strict=True)])
        slope = xy / xx if xx else 0.0
        self._slopes += slope
        self._squared_slopes += slope**2
        self.ballots += 1

    @property
    def slope(self) -> float:
        """Mean of the ballots' least-squares slopes: the score gained from the middle position to the last."""
        return self._slopes / self.ballots

    @property
    def is_biased(self) -> bool:
        """Whether the bias is large and significant: over 50 ballots or more, a slope above .1 and above 4 errors.

        The error, sd/√n, treats ballots as independent. Two reversed orders cancel the effect of the members' quality
        on the slope, so over such pairs the true error is smaller.
        """
        if self.ballots < _MIN_BALLOTS:
            return False
        variance = max(self._squared_slopes / self.ballots - self.slope**2, 0.0)
        return abs(self.slope) > max(_MIN_SLOPE, _MIN_ERRORS * math.sqrt(variance / (self.ballots - 1)))


@dataclass(slots=True)
class LengthBias:
    """How far scores go with the length of what agents wrote, within groups."""

    groups: int = 0
    members: int = 0
    _sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of the products, and the squares of log length and of score, each less its group's mean."""

    def add(self, members: Sequence[tuple[int, float]]) -> None:
        """Adds one group, as the characters and the score of each member."""
        if len(members) < 2:
            return
        sums = centred_sums([(math.log1p(characters), score) for characters, score in members])
        xy, xx, yy = (total + own for total, own in zip(self._sums, sums, strict=True))
        self._sums = xy, xx, yy
        self.groups, self.members = self.groups + 1, self.members + len(members)

    @property
    def correlation(self) -> float | None:
        """Pearson's r within groups; None where lengths or scores are all equal."""
        products, lengths, scores = self._sums
        return products / math.sqrt(lengths * scores) if lengths * scores > _RESIDUE else None

    def exceeds(self, expected: float) -> bool:
        """Whether the correlation exceeds the expected one: over 20 groups or more, by .1 and 3 standard errors."""
        if self.groups < _MIN_GROUPS or self.correlation is None:
            return False
        error = 1 / math.sqrt(self.members - self.groups)
        return self.correlation - expected > max(_MIN_EXCESS, 3 * error)


def characters_written(trajectory: Trajectory) -> int:
    """Characters of the agent's text and tool calls, in all its conversations."""
    turns = [message for history in (trajectory, *trajectory.additional_histories) for message in history.messages()]
    return sum(_characters(turn) for turn in turns if turn.get("role") == "assistant")


def _characters(turn: Message) -> int:
    content = turn.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    characters = len(text)
    calls: Any = turn.get("tool_calls") or []
    for call in calls if is_list(calls) else [calls]:
        body = (call.get("function") or call.get("custom")) if is_object(call) else None
        characters += sum(len(str(value)) for value in body.values()) if is_object(body) else 0
    return characters
