"""Rewards of single turns (`Trajectory.step_rewards`) and of whole trajectories, assigned to trained tokens.

A turn's reward is given at the turn's last token, the trajectory's reward at the last trained token of each of its
sequences; every other trained token has reward 0. Only a loss with a value head (PPO) uses them.
"""

import math

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.token_sequences import TokenSequence


def fits_its_turns(trajectory: Trajectory) -> bool:
    """Whether the trajectory's step rewards, if it has any, are one finite number for each sampled turn."""
    rewards = trajectory.step_rewards
    return rewards is None or (len(rewards) == len(list(trajectory.choices())) and all(map(math.isfinite, rewards)))


def token_rewards(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """The rewards of the trained tokens of one of the trajectory's sequences. `[T]`, at least one token

    Every sequence of the trajectory (a forked history, a sub-agent's conversation) ends with the trajectory's reward.
    Of a turn that a further history repeats, the first one's step reward counts.
    """
    rewards = dict.fromkeys((position for position, trained in enumerate(tokens.sampled) if trained), 0.0)
    if trajectory.step_rewards is not None:
        for turn, position in tokens.turn_ends.items():
            rewards[position] += trajectory.step_rewards[turn]
    found = list(rewards.values())
    found[-1] += trajectory.reward or 0.0
    return found
