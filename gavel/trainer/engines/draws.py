"""Draws the next token of each row of logits: temperature, another distribution than the policy's, and grammars.

A log-prob is that of the distribution from which its token was drawn: where a grammar forbids the token that the policy
draws, another is drawn among those that fit, with a random number of its own.

Sampling tokens with random numbers that depend on the request's seed and the position, not on the batch.

The same request therefore gives the same tokens whatever else is sampled beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from gavel.trainer.engines.grammar import Constraint, GrammarError
from gavel.trainer.engines.protocol import SamplingRequest

_BLOCK = 64
"""Vocabulary entries per partial sum."""
_BELOW = 1 - 2**-40
"""Keeps a fraction that was rounded to 1 below the total."""


def uniform_numbers(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) that depend on seed and position alone: SplitMix64 (Steele et al., 2014). `[n]`"""
    with np.errstate(over="ignore"):
        state = _mix(seeds.astype(np.uint64)) + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        return (_mix(state) >> np.uint64(11)) * 2.0**-53


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def sample_tokens(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF sampling: the tokens where the cumulative probabilities pass `uniforms`. `[rows]`

    `probabilities` `[rows, vocabulary]` need not sum to exactly 1; a token of probability 0 is never sampled. The block
    is found first and then the token in it: one cumulative sum over a large vocabulary costs more than the logits.
    """
    rows, vocabulary = probabilities.shape
    blocks = torch.nn.functional.pad(probabilities, (0, -vocabulary % _BLOCK)).view(rows, -1, _BLOCK)
    block, rest = _passed(blocks.sum(-1), uniforms)
    token = _passed(blocks[torch.arange(rows, device=blocks.device), block], rest)[0]
    return block * _BLOCK + token


def _passed(weights: torch.Tensor, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the cumulative `weights` `[rows, n]` pass `shares` of their sum, and how far into it. `[rows]`"""
    upto = weights.double().cumsum(-1)
    wanted = shares[:, None] * upto[:, -1:] * _BELOW
    at = torch.searchsorted(upto, wanted, right=True).clamp(max=weights.shape[1] - 1)  # for sums that are NaN
    before = torch.where(at > 0, upto.gather(-1, (at - 1).clamp(min=0)), 0.0)
    into = (wanted - before) / (upto.gather(-1, at) - before)
    return at[:, 0], into[:, 0].clamp(0, 1)


_SEED_BITS = 2**64 - 1
_ANOTHER = 0x5851F42D4C957F2D
"""Between the seed of a row and that of tokens which are drawn again."""


class Drawing(Protocol):
    """A reply that is being sampled."""

    @property
    def request(self) -> SamplingRequest: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def constraint(self) -> Constraint | None: ...


@dataclass(slots=True)
class Draw:
    """One token."""

    token: int
    logprob: float
    likeliest: list[tuple[int, float]] | None = None
    """Of the distribution that it was drawn from; None where nobody asks."""
    again: bool = False
    """Whether the policy drew one that the grammar forbids."""


def draw_tokens(logits: torch.Tensor, rows: Sequence[Drawing]) -> list[Draw | GrammarError]:
    """The next token of each row. `logits` `[rows, vocabulary]` are overwritten."""
    temperatures = torch.tensor([row.request.temperature for row in rows], device=logits.device)
    shaped = [(at, row.request.shaping) for at, row in enumerate(rows) if row.request.shaping is not None]
    for at, shaping in shaped:
        logits[at] = shaping.logits(logits[at], rows[at].request.prompt_ids, rows[at].token_ids)
    logprobs = torch.log_softmax(logits / temperatures.where(temperatures > 0, 1.0)[:, None], -1)
    for at, shaping in shaped:
        logprobs[at] = shaping.logprobs(logprobs[at])
    chosen = sample_tokens(logprobs.exp(), _uniforms(rows, 0).to(logits.device))
    if (temperatures == 0).any():
        chosen = torch.where(temperatures > 0, chosen, logits.argmax(-1))
    chosen_logprobs = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
    found: list[Draw | GrammarError] = []
    for at, (row, token, logprob) in enumerate(zip(rows, chosen.tolist(), chosen_logprobs, strict=True)):
        drawn = Draw(token, logprob)
        found.append(drawn)
        if row.constraint is None and not row.request.top_logprobs:
            continue
        source = logprobs[at]
        if row.constraint is not None and not row.constraint.take(token):
            try:
                source = _fitting(row.constraint, logits[at], source, row.request.temperature)
            except GrammarError as error:
                found[at] = error
                continue
            drawn = found[at] = _drawn_again(row, source)
            row.constraint.take(drawn.token)
        if row.request.top_logprobs:
            values, tokens = source.topk(min(row.request.top_logprobs, len(source)))
            pairs = zip(tokens.tolist(), values.tolist(), strict=True)
            drawn.likeliest = [(token, value) for token, value in pairs if value > -torch.inf]
    return found


def _fitting(constraint: Constraint, logits: torch.Tensor, logprobs: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probs of the tokens that fit; -inf for others. `[vocabulary]`"""
    forbidden = ~torch.from_numpy(constraint.allowed()).to(logits.device)
    masked = logprobs.masked_fill(forbidden, -torch.inf)
    if not masked.max() > -torch.inf:  # the tail that was cut off held all of them
        masked = (logits / (temperature or 1.0)).masked_fill(forbidden, -torch.inf)
    return torch.log_softmax(masked, -1)


def _drawn_again(row: Drawing, logprobs: torch.Tensor) -> Draw:
    if row.request.temperature == 0:
        token = int(logprobs.argmax())
    else:
        token = int(sample_tokens(logprobs.exp()[None], _uniforms([row], _ANOTHER).to(logprobs.device)))
    return Draw(token, float(logprobs[token]), again=True)


def _uniforms(rows: Sequence[Drawing], apart: int) -> torch.Tensor:
    """`[rows]`"""
    seeds = np.array([(row.request.seed ^ apart) & _SEED_BITS for row in rows], dtype=np.uint64)
    return torch.from_numpy(uniform_numbers(seeds, np.array([len(row.token_ids) for row in rows])))
