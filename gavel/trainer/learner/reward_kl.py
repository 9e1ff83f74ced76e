"""The KL divergence from the reference as part of the reward, by k1 = the sampler's log-prob - the reference's.

    per token       A_t = A - beta * (k1_t + k1_{t+1} + … of its sequence)               (REINFORCE++, arXiv 2501.03262)
    per sequence    A = advantage of R - beta * (sum of k1 of the sequence) in its group (RLOO, arXiv 2402.14740)

A group's advantages are linear in its rewards for `mean` and `rloo`, so the penalty's own are subtracted from them; its
mean is over the group's trained sequences. With a value head the penalty is part of the tokens' rewards instead.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from gavel.trainer.config import TrainConfig
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.learner.value_head import whiten


def penalized_advantages(
    sequences: Sequence[TrainedSequence], k1: Sequence[torch.Tensor], config: TrainConfig
) -> list[torch.Tensor]:
    """The advantages of the tokens of each sequence. `[T]` each, as of `k1`

    With `normalize_over_batch` those of tokens are brought to mean 0 and standard deviation 1 over all tokens; those of
    whole sequences are divided by their root mean square.
    """
    if config.kl_in_reward_per == "token":
        found = [
            sequence.advantage - config.kl_in_reward * _later(own) for sequence, own in zip(sequences, k1, strict=True)
        ]
        return [*whiten(torch.cat(found)).split([len(own) for own in k1])] if config.normalize_over_batch else found
    penalties = _group_penalties(sequences, [own.sum().item() for own in k1], leave_one_out=config.advantage == "rloo")
    values = [
        sequence.advantage - config.kl_in_reward * penalty
        for sequence, penalty in zip(sequences, penalties, strict=True)
    ]
    scale = math.sqrt(math.fsum(value**2 for value in values) / len(values)) if config.normalize_over_batch else 1.0
    return [torch.full_like(own, value / (scale or 1.0)) for own, value in zip(k1, values, strict=True)]


def penalized_rewards(
    sequences: Sequence[TrainedSequence], k1: Sequence[torch.Tensor], config: TrainConfig
) -> list[list[float]]:
    """The rewards of the tokens of each sequence, for a loss with a value head. `[T]` each"""
    found = []
    for sequence, own in zip(sequences, k1, strict=True):
        charged = own.tolist()
        if config.kl_in_reward_per == "sequence":
            charged = [0.0] * (len(charged) - 1) + [math.fsum(charged)]
        found.append([r - config.kl_in_reward * kl for r, kl in zip(sequence.rewards, charged, strict=True)])
    return found


def _later(k1: torch.Tensor) -> torch.Tensor:
    """The sum from each token to the last. `[T]`"""
    return k1.flip(0).cumsum(0).flip(0)


def _group_penalties(
    sequences: Sequence[TrainedSequence], sums: Sequence[float], *, leave_one_out: bool
) -> list[float]:
    """Less the mean of the group, or of the others in it."""
    groups: dict[int, list[float]] = defaultdict(list)
    for sequence, own in zip(sequences, sums, strict=True):
        groups[sequence.group].append(own)
    found = []
    for sequence, own in zip(sequences, sums, strict=True):
        members = groups[sequence.group]
        factor = len(members) / (len(members) - 1) if leave_one_out and len(members) > 1 else 1.0
        found.append((own - math.fsum(members) / len(members)) * factor)
    return found
