"""Random numbers that belong to a request, not to the batch that it is sampled in, and what they draw."""

import numpy as np
import torch

_BLOCK = 64
"""Tokens that are summed up together."""
_BELOW = 1 - 2**-40
"""Keeps a share that rounding has brought to 1 within the sum."""


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
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


def drawn(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The tokens at which the distributions' cumulative sums pass `uniforms`. `[rows]`

    `probabilities` `[rows, vocabulary]` need not sum to 1 exactly; a token without any is never drawn. First the block
    is found and then the token in it: over a large vocabulary the sums of all tokens would cost more than the logits.
    """
    rows, vocabulary = probabilities.shape
    blocks = torch.nn.functional.pad(probabilities, (0, -vocabulary % _BLOCK)).view(rows, -1, _BLOCK)
    place = _passed(blocks.sum(-1), uniforms)
    token = _passed(blocks[torch.arange(rows, device=blocks.device), place[0]], place[1])[0]
    return place[0] * _BLOCK + token


def _passed(weights: torch.Tensor, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the cumulative `weights` `[rows, n]` pass `shares` of their sums, and how far into that weight. `[rows]`"""
    upto = weights.double().cumsum(-1)
    wanted = shares[:, None] * upto[:, -1:] * _BELOW
    at = torch.searchsorted(upto, wanted, right=True).clamp(max=weights.shape[1] - 1)  # sums that are no numbers
    before = torch.where(at > 0, upto.gather(-1, (at - 1).clamp(min=0)), 0.0)
    into = (wanted - before) / (upto.gather(-1, at) - before)
    return at[:, 0], into[:, 0].clamp(0, 1)
