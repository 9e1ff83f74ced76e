"""What log-probs of the same tokens say about the adapter that a sampler serves: the new one, the earlier one, another?

    learner  earlier -1.20 -0.70 -3.10    new -1.00 -0.80 -2.90
    sampler          -1.19 -0.71 -3.12        the earlier adapter: twice as near to it as to the new one

Sampler and learner round in different places, and a change of the adapter below their rounding changes every bit of a
log-prob while it says nothing. So no gap is an error by its size alone. "earlier" needs a gap well beyond the rounding
that was seen before, and the sampler nearer to the earlier adapter in the mean and in quantiles, in both halves of the
tokens that tell the two adapters apart: a healthy sampler is nearer to the earlier one only by chance, since the two
cases are mirror images. Or no bit of the sampler's log-probs changed at all. What neither shows is "unknown".

At a small learning rate an adapter's effect stays below rounding for many steps, so no comparison of values tells which
one is served. Yet every log-prob is rounded anew: a sampler that follows moves about as far at each publication as at
the others, and one that is stuck only by what differs between two passes. `Movement` adds that up.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import torch

FEWEST = 32
"""Tokens below which nothing is told."""
_CLEARLY = 2.0
"""How many times nearer the sampler must be to one adapter than to the other."""
_BEYOND = 4.0
"""How many times larger than rounding the distance to the other one must be."""
_ANOTHER = 4.0
"""A gap so many times the rounding and the learner's own change belongs to another adapter."""
_QUANTILES = (0.5, 0.9)
_TELLING, _FEWEST_TELLING = 1 / 8, 16
"""Share and number of the tokens that are looked at: those whose log-prob the adapters change most."""
_CERTAIN = 1e-3
"""Nats. Tokens that are more certain than this may keep every bit of their log-prob."""
_CHANGED = 0.9
_REMEMBERED = 20
"""Publications from which the sampler's movement is known,"""
_KNOWN = 3
"""and how many are needed."""
_STILL = 0.5
"""Share of the least movement seen so far, from which on the sampler may be standing still."""
_MOST, _ENOUGH = 3.0, 4.0
"""Bits of evidence that one publication gives at most, and that are needed: so one publication alone is never enough.

Beside 36 layers in bfloat16 a healthy sampler's movement varies by 18 % (the standard deviation of its logarithm): one
bit below the least of twenty is some six of these below the mean, and at least two such publications are needed.
"""

Verdict = Literal["new", "earlier", "another", "unknown"]


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probs of the probe's tokens under one adapter. `[T]` each."""

    learner: torch.Tensor
    sampler: torch.Tensor


def verdict(new: Scores, earlier: Scores, last: Scores, rounding: float, floor: float) -> Verdict:
    """Which adapter the sampler serves, from its scores after a publication (`new`).

    `earlier`: before, under an adapter that it certainly served; `last`: at the publication before this one, the same
    unless that was not told. `rounding`: the largest mean gap of sampler and learner that was seen under one adapter,
    `floor`: one that is always taken for rounding; nats per token.
    """
    if len(new.learner) < FEWEST:
        return "unknown"
    if _unmoved(new, last):
        return "earlier"
    near, far = (new.sampler - new.learner).abs(), (new.sampler - earlier.learner).abs()
    change = (new.learner - earlier.learner).abs()
    beyond = near.mean() > _ANOTHER * max(rounding, change.mean().item(), floor)
    if beyond and near.mean() > far.mean() / _CLEARLY:
        return "another"
    telling = change.topk(max(_FEWEST_TELLING, int(_TELLING * len(change)))).indices.sort().values
    halves = telling[: len(telling) // 2], telling[len(telling) // 2 :]
    if near[telling].mean() > _BEYOND * max(rounding, floor) and all(_smaller(far[at], near[at]) for at in halves):
        return "earlier"
    if far[telling].mean() > _BEYOND * rounding and all(_smaller(near[at], far[at]) for at in halves):
        return "new"
    return "unknown"


def _smaller(gaps: torch.Tensor, others: torch.Tensor) -> bool:
    """In the mean, and at every quantile."""
    at = torch.tensor(_QUANTILES, device=gaps.device)
    ranked = bool((torch.quantile(others, at) >= _CLEARLY * torch.quantile(gaps, at)).all())
    return ranked and bool(others.mean() > _CLEARLY * gaps.mean())


def _unmoved(new: Scores, last: Scores) -> bool:
    """Whether no bit of the sampler's log-probs changed, where nearly all of the learner's did."""
    if not torch.equal(new.sampler, last.sampler):
        return False
    open_ = new.learner < -_CERTAIN
    changed = new.learner[open_] != last.learner[open_]
    return len(changed) >= FEWEST and changed.float().mean().item() >= _CHANGED


class Movement:
    """How far the sampler's log-probs move at a publication, for each nat that the learner's move."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=_REMEMBERED)
        self._bits = 0.0

    def stands_still(self, new: Scores, last: Scores, again: torch.Tensor) -> bool:
        """Whether the sampler certainly did not move at the last publications, while the learner did.

        `last`: scores of the same tokens before the publication; `again`: the sampler's, asked for a second time after
        it. Where two passes differ by about as much as the sampler moves when it follows, nothing is told.
        """
        learner = (new.learner - last.learner).abs().mean().item()
        moved = (new.sampler - last.sampler).abs().mean().item()
        noise = (again - new.sampler).abs().mean().item()
        if len(new.learner) < FEWEST or not learner:
            return False
        own = math.sqrt(max(moved**2 - noise**2, 0.0))
        expected = min(self._shares) * learner if len(self._shares) >= _KNOWN else 0.0
        if moved > _CLEARLY * noise:
            self._bits = 0.0
            self._shares.append(own / learner)
        elif expected and max(own, noise) <= _STILL * expected:
            self._bits += min(_MOST, math.log2(expected / max(own, noise, expected / 2**_MOST)))
        return self._bits >= _ENOUGH
