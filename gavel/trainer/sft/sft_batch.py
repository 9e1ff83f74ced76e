"""Supervised fine-tuning: trains the assistant turns of trajectories, whatever their rewards.

It is REINFORCE with an advantage of 1: the loss of an update is the mean of -log p over its trained tokens.
Packing, log-probs and the AdamW state are those of every other training step.
"""

import logging
from collections.abc import Iterable

from openai.types.chat.chat_completion import Choice

from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.config import Reinforce, SftConfig, TrainConfig
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, join_turns
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.policy.policy import Policy
from gavel.trainer.sft.demonstrations import DemonstrationError, UnsayableError, demonstrated

METRICS = ("loss", "entropy", "gradient_norm", "learning_rate", "updates", "tokens_forwarded")
"""The metrics of a supervised step; the others of a step compare with a sampler."""

logger = logging.getLogger(__name__)


def make_sft_batch(trajectories: Iterable[Trajectory], policy: Policy) -> Batch:
    """The trajectories' assistant turns as tokens; each is a group of its own, so that processes can share an update.

    A trajectory that cannot be trained is left out and counted. Raises `DemonstrationError` for a malformed message and
    `TokenError` for token ids that the base model does not have.
    """
    batch = Batch()
    for number, trajectory in enumerate(trajectories):
        found = _sequences(number, trajectory, policy)
        if isinstance(found, LeftOut):
            batch.left_out_members[found] += 1
            continue
        batch.sequences += [TrainedSequence(tokens, 1.0, batch.trajectories) for tokens in found]
        batch.trajectories += 1
    batch.groups = batch.trajectories
    return batch


def as_training(config: SftConfig, batch: Batch) -> TrainConfig:
    """The training step whose updates learn from at most `batch_size` trajectories each, shuffled in every epoch."""
    shared = config.model_dump(exclude={"batch_size", "restart"})
    return TrainConfig(loss=Reinforce(), mini_batches=max(1, -(-batch.trajectories // config.batch_size)), **shared)


def _of_the_policy(trajectory: Trajectory) -> list[History]:
    """The histories to learn from: of several agents, those in which the policy acted, where any has its turns."""
    histories = trajectory.histories()
    acting = [each for each in histories if any(isinstance(item, Choice) for item in each.messages_and_choices)]
    return [each for each in histories if each in acting or each.agent is None] if acting else histories


def _sequences(number: int, trajectory: Trajectory, policy: Policy) -> list[TokenSequence] | LeftOut:
    """The token sequences of a trajectory, or why there are none."""
    try:
        found = join_turns([demonstrated(history, policy) for history in _of_the_policy(trajectory)])
    except UnsayableError as error:
        logger.warning("trajectory %d is left out: %s", number, error)
        return LeftOut.NOT_RENDERABLE
    except DemonstrationError as error:
        raise DemonstrationError(f"trajectory {number}: {error.message}", error.remedy) from error
    if not found:
        return LeftOut.NO_ASSISTANT_TURN
    if max(len(tokens.token_ids) for tokens in found) > policy.max_context:
        return LeftOut.TOO_LONG
    outside = {token for tokens in found for token in tokens.token_ids if not 0 <= token < policy.vocabulary}
    if outside:
        raise TokenError(
            f"trajectory {number} has the token id {min(outside)}, but the base model knows {policy.vocabulary} tokens",
            "Leave out the token ids that another model sampled, or choose the tokenizer that fits the base model.",
        )
    return found
