"""Noise: the standard errors of a group's scores, from the scatter of its votes, pooled over the group and the run.

    votes = [NoisyVote(member=0, scale="a", juror=0, position=-1.0, score=0.5), …]
    found = residual_noise(votes)          variance of one vote about what the judge says on average, degrees of freedom
    errors = standard_errors(votes, found, NoisePrior(variance=0.01, df=24))      {0: (0.07, 30.0), …}

The error of a score is about the score that this judge would give over all orders. Votes are noisy, and two of them
say little about how much: by themselves they give an error of 0 whenever they happen to agree. So one variance is
estimated for all members of a group, and shrunk to the variance of earlier groups.

Part of the votes' scatter is the position in the prompt, which balanced orders cancel out of the mean. The model

    vote = member + scale + juror's effect of the position + noise

is fitted by least squares, and what is left counts as noise; so does, with a small weight, what the position explains.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_MIN_DF = 4
"""Degrees of freedom that a second or third effect of the position must leave for the noise."""
_DOUBT = 0.1
"""Weight, as degrees of freedom, of the doubt that the votes' scatter is an effect of the position at all."""
_MIRRORED = 1.12
"""Factor of the variance where a member has one position and its mirror, and no prior tells what both ends gain over
the middle, since the votes do not. Chosen so that 90 % intervals of simulated judges, biased so or not, hold."""
_TELLING = 100
"""Degrees of freedom from which on the groups of a prior tell what both ends gain."""
_NO_LENGTH = 1e-8
"""A column that is no longer than this within the others is one of them."""
_RESIDUE = 1e-12
"""A variance below this is floating-point residue."""


class NoisePrior(BaseModel):
    """What earlier groups of the same judge tell of its errors, settled before the groups that it is used for."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    variance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Variance of one vote about the score that the judge gives its member on average."""
    df: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Its weight, as degrees of freedom of a group's own estimate: small where groups differ in noise."""
    ends: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """What both ends of the prompt gain or lose over the middle, in score by `position²`, beyond chance. Two mirrored
    orders of one group do not show it; None = its groups do not tell it."""
    skill: float | None = Field(default=None, allow_inf_nan=False)
    """How far its scores agree with labels: see `p_better`. Below 0 they contradict them; None = it has no labels.
    Votes do not tell this: a judge that agrees with itself may be wrong each time."""
    length: float | None = Field(default=None, ge=-1, le=1)
    """How far labels go with length: their correlation with log characters within groups. None = it has no labels."""

    def p_better(self, difference: float, error: float = 0.0) -> float:
        """The probability that a member is better than another, by `difference` of their scores with standard `error`.

        Φ(skill·difference / √(1 + skill²·error²)): of two members with scores 1 apart and without noise, the higher is
        the better one with probability Φ(skill), since labels and judge differ by a normal error of variance 1/skill².
        Without labels it is the probability that the judge, asked in all orders, would put the two in this order.
        """
        if not difference:
            return 0.5
        if self.skill is None:
            return NormalDist().cdf(difference / error) if error else float(difference > 0)
        return NormalDist().cdf(self.skill * difference / (1 + (self.skill * error) ** 2) ** 0.5)


@dataclass(frozen=True, slots=True)
class NoisyVote:
    """One vote, and where its member stood in the prompt."""

    member: int
    scale: Hashable
    """Votes on one scale are comparable; another scale may differ by a constant."""
    juror: Hashable
    """Each juror has its own effect of the position."""
    position: float
    """From -1 (first) to 1 (last)."""
    score: float
    weight: float = 1.0
    square: float = 0.0
    """`position²` less its mean over the prompt."""
    call: int = 0
    """The call that it was read from."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of the votes of one group."""

    variance: float
    """Variance of one vote."""
    df: float
    """Degrees of freedom; 0 = nothing is known, and the variance has no meaning."""
    position_effects: Sequence[float] = field(default=())
    """Fitted effect of the position on each vote."""
    without_effects: float | None = None
    """Variance of one vote when what the position explains is noise as well; None = it explains nothing."""
    ends: tuple[float, float] = (0.0, 0.0)
    """Of mirrored orders, the sums of square x score and of square², which tell `NoisePrior.ends` over many groups."""


def residual_noise(votes: Sequence[NoisyVote]) -> Noise:
    """The variance of the votes about a member's mean, its scale and the effect of its position, by least squares.

    The effect of the position is a line for each juror; where at least four degrees of freedom are left also a square
    (both ends favoured over the middle), and a line that is steeper in the middle of the range of scores than at its
    ends, where a bounded score has little room to move. An effect that the votes cannot tell from the members' scores
    is left out: two mirrored orders show no square. Over whole Williams squares any effect of the position and of the
    member shown before cancels out of every mean, so none of it counts as noise.
    """
    count = len(votes)
    if count <= len({vote.member for vote in votes}):  # such as one order: nothing is left for the noise
        return Noise(0.0, 0)
    import numpy as np

    scores, members = np.array([vote.score for vote in votes]), _dummies([vote.member for vote in votes])
    sizes = members.sum(axis=0)
    means = members @ (members.T @ scores / sizes)
    basis = without_effects = _extend(members / sizes**0.5, _dummies([vote.scale for vote in votes]))
    position, square = np.array([vote.position for vote in votes]), np.array([vote.square for vote in votes])
    bent = position * np.maximum(means * (1 - means), 0)
    jurors = _dummies([vote.juror for vote in votes])
    effects: list[Array] = []
    for effect, must_leave in ((position, 1), (square, _MIN_DF), (bent, _MIN_DF)):
        if count - basis.shape[1] - jurors.shape[1] < must_leave:
            continue
        extended = _extend(basis, columns := jurors * effect[:, None])
        if extended.shape[1] == basis.shape[1] + columns.shape[1]:  # else votes do not tell it from the members' scores
            basis = extended
            effects.append(columns)
    if (cancelled := _balanced_effects(votes)) is not None:
        basis = _extend(basis, cancelled)
    freedom = count - basis.shape[1]
    if freedom < 1:
        return Noise(0.0, 0)
    squares, fitted, without = _squares_left(scores, basis), np.zeros(count), None
    if effects:
        without = _squares_left(scores, without_effects) / (count - without_effects.shape[1])
        columns = np.hstack(effects)
        apart = columns - without_effects @ (without_effects.T @ columns)
        fitted = columns @ np.linalg.lstsq(apart, scores, rcond=None)[0]
    ends = (float(square @ means), float(square @ square)) if _are_mirrored(votes) else (0.0, 0.0)
    return Noise(squares / freedom if squares > _RESIDUE else 0.0, freedom, fitted.tolist(), without, ends)


def _are_mirrored(votes: Sequence[NoisyVote]) -> bool:
    """Whether a member has at most two positions."""
    return len({vote.position for vote in votes if vote.member == votes[0].member}) < 3


def _balanced_effects(votes: Sequence[NoisyVote]) -> "Array | None":
    """Columns for each position and each member shown before, of the jurors whose orders balance both. `[votes, k]`

    A column is 1 where a vote has the position (or the member before it), less its share over all orders; over a whole
    Williams square it sums to 0 for every member. A juror whose orders are part of a square has no columns.
    """
    numbers = {member: n for n, member in enumerate(dict.fromkeys(vote.member for vote in votes))}
    size = len(numbers)
    if len(votes) < size**2:  # a square has as many calls as members
        return None
    import numpy as np

    calls: dict[Hashable, dict[int, list[tuple[float, int, int]]]] = {}
    for row, vote in enumerate(votes):
        calls.setdefault(vote.juror, {}).setdefault(vote.call, []).append((vote.position, vote.member, row))
    blocks: list[Array] = []
    for own in calls.values():
        if len(own) < size or any(len(call) < size for call in own.values()):
            continue
        table = np.zeros((len(votes), 2 * size))
        sums = np.zeros((size, 2 * size))
        for call in own.values():
            before: int | None = None
            for place, (_, member, row) in enumerate(sorted(call)):
                number = numbers[member]
                table[row] = -1 / size
                table[row, size + number] = 0  # nothing follows itself
                table[row, place] += 1
                if before is not None:
                    table[row, size + before] += 1
                sums[number] += table[row]
                before = number
        if np.abs(sums).max() < 1e-9 and len(own) * size - 3 * size > _MIN_DF:
            blocks.append(table)
    return np.hstack(blocks) if blocks else None


def shrunk(noise: Noise, prior: NoisePrior | None) -> tuple[float, float]:
    """The variance of one vote and its degrees of freedom, with those of the prior: both add up their squares.

    (d0·s0² + d·s²) / (d0 + d), the empirical Bayes estimate of a variance (Smyth 2004, "Linear models and empirical
    Bayes methods", equation for the moderated t-statistic, which has d0 + d degrees of freedom).

    A fraction of one more doubts that the position has an effect, and takes all scatter for noise. Otherwise two
    orders that contradict each other exactly would leave no error at all: their scatter is one effect of the position.
    """
    parts = [(noise.df, noise.variance)]
    if prior is not None:
        parts.append((prior.df, prior.variance))
    if noise.without_effects is not None:
        parts.append((_DOUBT, noise.without_effects))
    total = sum(df for df, _ in parts)
    return sum(df * variance for df, variance in parts) / total if total else noise.variance, total


def standard_errors(
    votes: Sequence[NoisyVote], noise: Noise, prior: NoisePrior | None = None
) -> dict[int, tuple[float, float]]:
    """The standard error of each member's weighted mean, and its degrees of freedom; empty where nothing is known.

    SE² = s²·Σw²/(Σw)² + b², with the noise s² of one vote and the effect b of the positions that remains in the mean,
    which is 0 for balanced orders but for what a prior tells of both ends. A member's single vote has an error too:
    that of a vote.
    """
    variance, df = shrunk(noise, prior)
    if df <= 0 or noise.df <= 0:
        return {}
    is_mirrored = _are_mirrored(votes)
    ends = prior.ends if prior is not None and is_mirrored else None
    variance *= _MIRRORED if is_mirrored and ends is None else 1
    totals: dict[int, list[float]] = {}
    effects = noise.position_effects or [0.0] * len(votes)
    for vote, effect in zip(votes, effects, strict=True):
        sums = totals.setdefault(vote.member, [0.0, 0.0, 0.0])
        sums[0] += vote.weight
        sums[1] += vote.weight**2
        sums[2] += vote.weight * (effect + (ends or 0.0) * vote.square)
    errors: dict[int, tuple[float, float]] = {}
    for member, (weight, squares, effect) in totals.items():
        squared = variance * squares / weight**2 + (effect / weight) ** 2
        errors[member] = (squared**0.5 if squared > _RESIDUE else 0.0, df)
    return errors


def fit_prior(groups: Iterable[Noise]) -> NoisePrior | None:
    """The prior that these groups are evidence for; None without a group whose noise is known.

    The variance is the mean weighted by degrees of freedom. The prior's degrees of freedom d0 say how alike the groups
    are: a group's variance relative to the mean scatters by τ² + (1 + τ²)·2/d, of which 2/d is sampling, and by the
    method of moments 1/d0 = τ²/2 + 1/Σd.
    """
    known = [noise for noise in groups if noise.df > 0]
    total = sum(noise.df for noise in known)
    if not known:
        return None
    variance = sum(noise.df * noise.variance for noise in known) / total
    if variance <= _RESIDUE:
        return NoisePrior(variance=0.0, df=total)
    squares, ends = sum(noise.ends[1] for noise in known), None
    if total >= _TELLING and squares > _RESIDUE:
        slope = sum(noise.ends[0] for noise in known) / squares
        chance = sum((noise.ends[0] - slope * noise.ends[1]) ** 2 for noise in known) / squares**2
        ends = max(0.0, slope**2 - chance) ** 0.5
    scatter = sum(noise.df * (noise.variance / variance - 1) ** 2 for noise in known)
    between = max(0.0, (scatter - 2 * len(known)) / (total + 2 * len(known)))
    return NoisePrior(variance=variance, df=1 / (between / 2 + 1 / total), ends=ends)


def _squares_left(scores: "Array", basis: "Array") -> float:
    """The sum of squares that an orthonormal basis leaves of the scores."""
    return float(((scores - basis @ (basis.T @ scores)) ** 2).sum())


def _extend(basis: "Array", columns: "Array") -> "Array":
    """The orthonormal basis, and what the columns add to it, by Gram-Schmidt. `[votes, rank]`"""
    import numpy as np

    for column in columns.T:
        left = column - basis @ (basis.T @ column)
        left -= basis @ (basis.T @ left)  # twice, for what rounding left of the basis
        if (length := (left @ left) ** 0.5) > _NO_LENGTH:
            basis = np.column_stack((basis, left / length))
    return basis


def _dummies(values: Sequence[Hashable]) -> "Array":
    """One column for each distinct value, 1 where it occurs. `[votes, values]`"""
    import numpy as np

    index = {value: n for n, value in enumerate(dict.fromkeys(values))}
    table = np.zeros((len(values), len(index)))
    table[np.arange(len(values)), [index[value] for value in values]] = 1
    return table
