"""Policy-gradient losses: pure functions on the flat trained tokens of whole sequences.

Shapes: `[T]` over all trained tokens, sequence after sequence; `lengths` are the sequences' numbers of trained tokens
and sum to T. A token's weight contains the denominator of its whole mini-batch, so the loss of a mini-batch is the
plain sum over its micro-batches, however these are cut.

PPO's value head gives per-token values, their targets and losses, and the advantages made from them. A value belongs to
the state before a trained token, that is to the position that predicts it. A time step is one trained token: the tokens
between them (tool results, the next prompt) are not steps.

The advantages are by generalized advantage estimation (GAE, arXiv 1506.02438) over the trained tokens of one sequence.

gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=1.0)  ->  [0.5, 0.5]   sum of the later rewards, minus the value
gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=0.0)  ->  [0.0, 0.5]   one-step temporal differences
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gavel.trainer.config import (
    Aggregation,
    Cispo,
    ClippedSurrogate,
    Gspo,
    KlEstimator,
    Loss,
    Ppo,
    Reinforce,
    SamplerCorrection,
    TrainConfig,
)
from gavel.trainer.data.advantages import credit

_MAX_LOG_RATIO = 20.0
_ROUNDING = 1e-9
"""Tolerance for counts: 0.2 of 10 tokens are 2, whatever 0.2 is in binary."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probs and advantages of the trained tokens; only `logprobs` has a gradient."""

    logprobs: torch.Tensor
    """Log-probs under the policy in training. `[T]`"""
    old: torch.Tensor
    """Log-probs under the policy in the ratio's denominator. `[T]`"""
    sampler: torch.Tensor
    """Reported by the sampler. `[T]`"""
    advantages: torch.Tensor
    """The sequence's advantage at each token, or with a value head the token's own. `[T]`"""
    lengths: Sequence[int]
    """Trained tokens of each sequence, at least 1; they sum to T."""
    reference: torch.Tensor | None = None
    """Log-probs under the base model; adds beta times the KL divergence to the losses. `[T]`"""
    entropies: torch.Tensor | None = None
    """Entropies of the tokens' distributions, with gradient if there is an entropy bonus. `[T]`"""
    chosen: torch.Tensor | None = None
    """True for the tokens that the policy loss trains; None: all. `[T]`"""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Loss, ratio and clipping of every token. `[T]` each."""

    losses: torch.Tensor
    ratio: torch.Tensor
    clipped_low: torch.Tensor
    """True where the ratio is bounded from below."""
    clipped_high: torch.Tensor
    """True where the ratio is bounded from above."""
    divergence: torch.Tensor | None = None
    """Divergence from the base model, in nats; None without a reference."""
    correction: "SamplerWeights | None" = None
    """None without `sampler_correction`."""


@dataclass(frozen=True, slots=True)
class SamplerWeights:
    """Importance weights of the sampled tokens under the learner, without a gradient. `[T]` each."""

    weights: torch.Tensor
    """Truncated or masked."""
    bounded: torch.Tensor
    """True where the weight was beyond the floor or the cap."""


def token_losses(config: TrainConfig, scores: TokenScores) -> TokenLosses:
    """The policy loss of the chosen tokens, times the sampler-correction weights, plus beta times the KL divergence,
    less the entropy bonus."""
    policy = policy_losses(config.loss, scores)
    losses, divergence, correction = policy.losses, None, None
    if scores.chosen is not None:
        losses = torch.where(scores.chosen, losses, 0.0)
    if config.sampler_correction is not None:
        correction = sampler_weights(scores.old, scores.sampler, scores.lengths, config.sampler_correction)
        losses = losses * correction.weights
    if scores.reference is not None:
        divergence = kl(scores.logprobs, scores.reference, config.kl_estimator)
        losses = losses + config.beta * (divergence * policy.ratio if config.kl_with_ratio else divergence)
    if config.entropy_bonus and scores.entropies is not None:
        losses = losses - config.entropy_bonus * scores.entropies
    return TokenLosses(losses, policy.ratio, policy.clipped_low, policy.clipped_high, divergence, correction)


def policy_losses(loss: Loss, scores: TokenScores) -> TokenLosses:
    """The losses of `loss` only. Weighted by `token_weights` with the aggregation of `loss`, they sum to its value."""
    logprobs, old, advantages = scores.logprobs, scores.old, scores.advantages
    match loss:
        case Gspo():
            ratio = sequence_ratio(logprobs, old, scores.lengths)
        case _:
            ratio = token_ratio(logprobs, old)
    never = torch.zeros_like(ratio, dtype=torch.bool)
    match loss:
        case (
            ClippedSurrogate(clip_low=low, clip_high=high, dual_clip=dual)
            | Ppo(clip_low=low, clip_high=high, dual_clip=dual)
        ):
            losses = clipped_surrogate(ratio, advantages, low, high, dual)
            return TokenLosses(losses, ratio, *clipped(ratio, advantages, low, high, dual))
        case Gspo(clip_low=low, clip_high=high):
            losses = clipped_surrogate(ratio, advantages, low, high)
            return TokenLosses(losses, ratio, *clipped(ratio, advantages, low, high))
        case Cispo(ratio_cap=cap):
            return TokenLosses(cispo(logprobs, ratio, advantages, cap), ratio, never, ratio > cap)
        case Reinforce():
            return TokenLosses(-advantages * logprobs, ratio, never, never)


def token_ratio(logprobs: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """exp(logprobs - old), the exponent kept within 20 nats. `[T]`"""
    return torch.exp(_bounded(logprobs - old))


def sequence_ratio(logprobs: torch.Tensor, old: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """exp(mean of logprobs - old over the sequence), at each of its tokens. `[T]` (GSPO, arXiv 2507.18071)"""
    means = [part.mean().expand(len(part)) for part in torch.split(logprobs - old, list(lengths))]
    return torch.exp(_bounded(torch.cat(means)))


def clipped_surrogate(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347). `[T]`

    `dual_clip` bounds it from above by -dual_clip A where A < 0 (arXiv 1912.09729).
    """
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is not None:
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, dual_clip * advantages), surrogate)
    return -surrogate


def clipped(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks of the tokens that lose their gradient to the lower and upper bound of `clipped_surrogate`. `[T]` each"""
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    if dual_clip is not None:
        high |= (ratio > dual_clip) & (advantages < 0)
    return low, high


def cispo(logprobs: torch.Tensor, ratio: torch.Tensor, advantages: torch.Tensor, ratio_cap: float) -> torch.Tensor:
    """-min(r, cap) A logprobs, the gradient going through logprobs alone (MiniMax-M1, arXiv 2506.13585). `[T]`"""
    return -ratio.detach().clamp(max=ratio_cap) * advantages * logprobs


def kl(logprobs: torch.Tensor, reference: torch.Tensor, estimator: KlEstimator) -> torch.Tensor:
    """Estimates of KL(policy || reference) from tokens of the policy, d = reference - logprobs within 20 nats. `[T]`

    k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1 (Schulman, http://joschu.net/blog/kl-approx.html). k1 and k3 are
    unbiased; k2 and k3 are never negative.
    """
    difference = _bounded(reference - logprobs)
    match estimator:
        case "k1":
            return -difference
        case "k2":
            return difference.square() / 2
        case "k3":
            return torch.exp(difference) - difference - 1


def sampler_weights(
    learner: torch.Tensor, sampler: torch.Tensor, lengths: Sequence[int], correction: SamplerCorrection
) -> SamplerWeights:
    """exp(learner - sampler) of the token, or of the sum or mean over its sequence, bounded as `correction` says."""
    difference = (learner - sampler).detach()
    parts = torch.split(difference, list(lengths))
    if correction.mode in ("sequence_truncate", "sequence_mask"):
        difference = torch.cat([part.sum().expand(len(part)) for part in parts])
    elif correction.mode == "geometric_mask":
        difference = torch.cat([part.mean().expand(len(part)) for part in parts])
    weights = torch.exp(_bounded(difference))
    bounded = (weights < correction.floor) | (weights > correction.cap)
    if correction.mode in ("token_truncate", "sequence_truncate"):
        return SamplerWeights(weights.clamp(correction.floor, correction.cap), bounded)
    kept = torch.ones_like(weights) if correction.mode == "geometric_mask" else weights
    return SamplerWeights(torch.where(bounded, 0.0, kept), bounded)


def highest(entropies: torch.Tensor, share: float) -> torch.Tensor:
    """True for the `share` of the tokens with the highest entropies, rounded up; equal ones are all among them. `[T]`

    (Wang et al., 2025, arXiv 2506.01939.)
    """
    count = min(len(entropies), math.ceil(share * len(entropies) - _ROUNDING))
    return entropies >= entropies.topk(max(1, count)).values[-1]


def token_weights(loss: Loss, lengths: Sequence[int], groups: Sequence[int]) -> list[float]:
    """The weight of each token of each sequence of a mini-batch, by the aggregation of `loss`.

    `lengths`: the sequences' trained tokens, at least 1 each; `groups`: a number for the group of each.
    """
    match loss:
        case Gspo():
            return _weights("grpo", 1, lengths, groups)
        case _:
            return _weights(loss.aggregation, loss.constant_length, lengths, groups)


def _weights(
    aggregation: Aggregation, constant_length: int, lengths: Sequence[int], groups: Sequence[int]
) -> list[float]:
    match aggregation:
        case "grpo":
            return [1 / (len(lengths) * length) for length in lengths]
        case "dapo":
            return [1 / sum(lengths)] * len(lengths)
        case "dr_grpo":
            return [1 / (len(lengths) * constant_length)] * len(lengths)
        case "bnpo":
            tokens: Counter[int] = Counter()
            for length, group in zip(lengths, groups, strict=True):
                tokens[group] += length
            return [1 / (len(tokens) * tokens[group]) for group in groups]


def _bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, gae_lambda: float) -> list[float]:
    """The advantage of each trained token; the value after the last token is 0. `[T]`

    A_t = d_t + gamma * gae_lambda * A_{t+1} with d_t = r_t + gamma * V_{t+1} - V_t.
    """
    following = [*values, 0.0][1:]
    differences = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return credit(differences, gamma * gae_lambda)


_VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True, slots=True)
class ValueEstimates:
    """Values, returns and advantages of the trained tokens of one sequence. `[T]` each, without a gradient."""

    values: torch.Tensor
    """The value estimates from before the batch's first update."""
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
    raw: list[torch.Tensor] = []
    for own_rewards, own_values in zip(rewards, values, strict=True):
        numbers: list[float] = own_values.tolist()  # type: ignore[no-untyped-call]
        raw.append(values[0].new_tensor(gae(own_rewards, numbers, loss.gamma, loss.gae_lambda)))
    whitened: Sequence[torch.Tensor] = raw
    if loss.whiten:
        whitened = torch.split(whiten(torch.cat(raw)), [len(each) for each in raw])
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
