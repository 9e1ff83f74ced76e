"""What a step of the learner holds beside the base: the learner's own code, run over a policy without weights."""

from collections.abc import Sequence

from gavel.trainer.config import TrainConfig
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.step_bytes import PassBytes, probe_sequence
from gavel.trainer.memory.meta_run import as_on
from gavel.trainer.memory.planned_policy import PlannedPolicy

_COUNTED = 4096, 8192
"""Tokens of the steps that are counted: from the first on no tile grows with them."""


def learner_bytes(policy: PlannedPolicy, *, device: str, checkpointing: bool) -> PassBytes:
    """Of a step on `device` (`cpu`, `cuda`), beside base and adapter: gradients and optimizer state are in `fixed`."""
    small, large = step_peaks(policy, _COUNTED, device=device, checkpointing=checkpointing)
    return PassBytes.through((_COUNTED[0], small), (_COUNTED[1], large))


def step_peaks(policy: PlannedPolicy, sizes: Sequence[int], *, device: str, checkpointing: bool) -> list[int]:
    """The peak bytes of a step over each of these numbers of tokens."""
    learner = Learner(policy)
    config = TrainConfig(gradient_checkpointing=checkpointing, micro_batch_tokens=max(sizes))
    peaks: list[int] = []
    with as_on(device) as counted:
        learner.step(_batch(2, 2), config)  # makes the optimizer's state
        for tokens in sizes:
            learner.optimizer.zero_grad(set_to_none=True)
            counted.peak = counted.live
            learner.step(_batch(tokens, policy.max_context), config)
            peaks.append(counted.peak + policy.largest_dequantized)
    return peaks


def _batch(tokens: int, longest: int) -> Batch:
    """Sequences of at most `longest` tokens that share none."""
    batch = Batch(trajectories=1, groups=1)
    for number, first in enumerate(range(0, tokens, longest)):
        sequence = probe_sequence(max(2, min(longest, tokens - first)))
        sequence.token_ids[0] = number
        batch.sequences.append(TrainedSequence(sequence, 1.0, number))
    return batch
