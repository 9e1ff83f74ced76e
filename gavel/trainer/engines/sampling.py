"""Sampling tokens with random numbers that depend on the request's seed and the position, not on the batch.

The same request therefore gives the same tokens whatever else is sampled beside it.
"""

import numpy as np
import torch

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
