"""A value head for PPO: per-token values, their targets and losses, and the advantages made from them.

A value belongs to the state before a trained token, that is to the position that predicts it. A time step is one
trained token: the tokens between them (tool results, the next prompt) are not steps.

Generalized advantage estimation (GAE, arXiv 1506.02438) over the trained tokens of one sequence.

gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=1.0)  ->  [0.5, 0.5]   sum of the later rewards, minus the value
gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=0.0)  ->  [0.0, 0.5]   one-step temporal differences
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gavel.trainer.config import Ppo


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, gae_lambda: float) -> list[float]:
    """The advantage of each trained token; the value after the last token is 0. `[T]`

    A_t = d_t + gamma * gae_lambda * A_{t+1} with d_t = r_t + gamma * V_{t+1} - V_t.
    """
    found: list[float] = []
    advantage, next_value = 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * advantage
        found.append(advantage)
        next_value = value
    return found[::-1]


_VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True, slots=True)
class ValueEstimates:
    """Values, returns and advantages of the trained tokens of one sequence. `[T]` each, without a gradient."""

    values: torch.Tensor
    """As they were when the batch began."""
    returns: torch.Tensor
    """Targets of the values: advantages before whitening, plus values."""
    advantages: torch.Tensor


def value_head(width: int, device: torch.device) -> torch.nn.Linear:
    """Hidden state -> value, in float32; initialized to zero, without drawing random numbers."""
    head = torch.nn.Linear(width, 1, device="meta", dtype=torch.float32).to_empty(device=device)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def value_estimates(
    rewards: Sequence[Sequence[float]], values: Sequence[torch.Tensor], loss: Ppo
) -> list[ValueEstimates]:
    """One for each sequence of a batch, from its tokens' rewards and values `[T]`; whitened over the whole batch."""
    raw = [
        values[0].new_tensor(gae(own_rewards, own_values.tolist(), loss.gamma, loss.gae_lambda))
        for own_rewards, own_values in zip(rewards, values, strict=True)
    ]
    whitened = whiten(torch.cat(raw)).split([len(each) for each in raw]) if loss.whiten else raw
    return [
        ValueEstimates(own, own + plain, advantages)
        for own, plain, advantages in zip(values, raw, whitened, strict=True)
    ]


def concatenate(parts: Sequence[ValueEstimates | None]) -> ValueEstimates | None:
    """The estimates of several sequences, concatenated; None when there are none."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    columns = ([part.values for part in known], [part.returns for part in known], [part.advantages for part in known])
    return ValueEstimates(*map(torch.cat, columns))


def value_metrics(estimate: ValueEstimates | None) -> dict[str, float]:
    """`explained_variance` and `return_mean` of a batch; empty without estimates."""
    if estimate is None:
        return {}
    explained = explained_variance(estimate.values, estimate.returns)
    return {"explained_variance": explained, "return_mean": estimate.returns.mean().item()}


def whiten(advantages: torch.Tensor) -> torch.Tensor:
    """(A - mean) / sqrt(unbiased variance + 1e-8); a single advantage is unchanged. `[T]`"""
    if len(advantages) < 2:
        return advantages
    return (advantages - advantages.mean()) * torch.rsqrt(advantages.var() + _VARIANCE_FLOOR)


def value_losses(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None = None
) -> torch.Tensor:
    """(V - R)^2 / 2, or the same for V clipped to old +- `clip` if that is larger (OpenAI's PPO). `[T]`"""
    losses = (values - returns).square()
    if clip is not None:
        clipped = torch.maximum(torch.minimum(values, old + clip), old - clip)
        losses = torch.maximum(losses, (clipped - returns).square())
    return losses / 2


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - var(returns - values) / var(returns): 1 for exact values, 0 for a constant; 0 for equal returns."""
    spread = returns.var(correction=0)
    return (1 - (returns - values).var(correction=0) / spread).item() if spread > 0 else 0.0
