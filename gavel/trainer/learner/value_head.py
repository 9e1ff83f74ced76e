"""A value head: what every sampled token makes of a turn's reward, for PPO.

A value belongs to the state before a trained token: the position that predicts it. Time runs over the trained
tokens of a sequence alone; what stands between them (tool results, the next prompt) takes none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import Ppo
from gavel.trainer.data.tokens import TokenSequence

_VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the values say of the trained tokens of one sequence. `[T]` each, without a gradient."""

    values: torch.Tensor
    """As they were when the batch began."""
    returns: torch.Tensor
    """What the values should have been: advantages, before whitening, plus values."""
    advantages: torch.Tensor


def value_head(width: int, device: torch.device) -> torch.nn.Linear:
    """Hidden state -> value, in single precision; it begins at zero and leaves the random generators alone."""
    head = torch.nn.Linear(width, 1, device="meta", dtype=torch.float32).to_empty(device=device)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def fits_its_turns(trajectory: Trajectory) -> bool:
    """Whether the trajectory's step rewards, if it has any, are one finite number for each sampled turn."""
    rewards = trajectory.step_rewards
    return rewards is None or (len(rewards) == len(list(trajectory.choices())) and all(map(math.isfinite, rewards)))


def token_rewards(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """The rewards of the trained tokens of one of the trajectory's sequences. `[T]`, at least one token

    A turn's own comes with its last token. The trajectory's comes with the last token of each sequence: all of them,
    a forked history or a sub-agent's conversation, lead to the same end. Of a turn that a further history repeats
    the first one's reward counts.
    """
    rewards = dict.fromkeys((place for place, own in enumerate(tokens.sampled) if own), 0.0)
    if trajectory.step_rewards is not None:
        for turn, place in tokens.turn_ends.items():
            rewards[place] += trajectory.step_rewards[turn]
    found = list(rewards.values())
    found[-1] += trajectory.reward or 0.0
    return found


def gae(rewards: Sequence[float], values: Sequence[float], discount: float, trace: float) -> list[float]:
    """Generalised advantage estimates of a sequence's trained tokens, nothing following the last. `[T]`

    A_t = d_t + discount * trace * A_{t+1} with d_t = r_t + discount * V_{t+1} - V_t (arXiv 1506.02438).
    """
    found, advantage, following = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + discount * following - value + discount * trace * advantage
        found.append(advantage)
        following = value
    return found[::-1]


def estimates(rewards: Sequence[Sequence[float]], values: Sequence[torch.Tensor], loss: Ppo) -> list[Estimate]:
    """For each sequence of a batch, from its tokens' rewards and values `[T]`; whitened over the whole batch."""
    raw = [
        values[0].new_tensor(gae(own_rewards, own_values.tolist(), loss.discount, loss.trace))
        for own_rewards, own_values in zip(rewards, values, strict=True)
    ]
    whitened = whiten(torch.cat(raw)).split([len(each) for each in raw]) if loss.whiten else raw
    return [
        Estimate(own, own + plain, advantages) for own, plain, advantages in zip(values, raw, whitened, strict=True)
    ]


def joined(parts: Sequence[Estimate | None]) -> Estimate | None:
    """The estimates of several sequences as one; None where there are none."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    columns = ([part.values for part in known], [part.returns for part in known], [part.advantages for part in known])
    return Estimate(*map(torch.cat, columns))


def value_metrics(estimate: Estimate | None) -> dict[str, float]:
    """How well the values foretold the returns of a batch, and the returns' mean; nothing without an estimate."""
    if estimate is None:
        return {}
    explained = explained_variance(estimate.values, estimate.returns)
    return {"explained_variance": explained, "return_mean": estimate.returns.mean().item()}


def whiten(advantages: torch.Tensor) -> torch.Tensor:
    """(A - mean) / sqrt(unbiased variance + 1e-8); a single one stays as it is. `[T]`"""
    if len(advantages) < 2:
        return advantages
    return (advantages - advantages.mean()) * torch.rsqrt(advantages.var() + _VARIANCE_FLOOR)


def value_losses(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None = None
) -> torch.Tensor:
    """(V - R)^2 / 2, or what V within `clip` of the old value costs, if that is more (OpenAI's PPO). `[T]`"""
    losses = (values - returns).square()
    if clip is not None:
        held = torch.maximum(torch.minimum(values, old + clip), old - clip)
        losses = torch.maximum(losses, (held - returns).square())
    return losses / 2


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - var(returns - values) / var(returns): 1 is all of it, 0 no more than a constant; 0 for equal returns."""
    spread = returns.var(correction=0)
    return (1 - (returns - values).var(correction=0) / spread).item() if spread > 0 else 0.0
