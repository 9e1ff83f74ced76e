"""Policy-gradient losses: pure functions on the flat trained tokens of a batch.

Shapes: `[T]` over all trained tokens of all sequences. A token's weight already holds the batch-wide
denominator, so the loss of a batch is the plain sum over its micro-batches.
"""

from collections.abc import Sequence
from typing import Literal

import torch

_MAX_LOG_RATIO = 20.0


def clipped_surrogate(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = exp(logprobs - old). `[T]` (PPO, arXiv 1707.06347)"""
    ratio = torch.exp((logprobs - old_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_share(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """Share of the tokens whose gradient the clip removes. Scalar."""
    ratio = torch.exp(logprobs - old_logprobs)
    removed = ((ratio > 1 + clip_high) & (advantages > 0)) | ((ratio < 1 - clip_low) & (advantages < 0))
    return removed.float().mean()


def kl_k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy || reference): exp(d) - d - 1, d = reference - policy. `[T]`"""
    difference = (reference_logprobs - logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return torch.exp(difference) - difference - 1


def token_weights(
    lengths: Sequence[int], aggregation: Literal["grpo", "dapo", "dr_grpo"], constant_length: int
) -> list[float]:
    """The weight of each token of each sequence, for sequences of `lengths` trained tokens.

    grpo: mean over sequences of their token means. dapo: mean over all tokens (arXiv 2503.14476).
    dr_grpo: sum / (sequences * constant length) (arXiv 2503.20783).
    """
    match aggregation:
        case "grpo":
            return [1 / (len(lengths) * length) for length in lengths]
        case "dapo":
            return [1 / sum(lengths)] * len(lengths)
        case "dr_grpo":
            return [1 / (len(lengths) * constant_length)] * len(lengths)
