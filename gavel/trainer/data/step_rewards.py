"""Rewards of single turns (`Trajectory.step_rewards`) and of whole trajectories, assigned to trained tokens.

With a value head (PPO) a turn's reward is given at the turn's last token, the trajectory's reward at the last trained
token of each of its sequences; every other trained token has reward 0. Without one, the turns of a group are compared
(`step_advantages`): [[1, 0], [0]] has the mean 1/3, so the first member's turns have 2/3 and -1/3, and the tokens of
its first turn get their sum.
"""

import math
from collections.abc import Sequence

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.token_sequences import TokenSequence


def fits_its_turns(trajectory: Trajectory) -> bool:
    """Whether the trajectory's step rewards, if it has any, are one finite number for each sampled turn."""
    rewards = trajectory.step_rewards
    return rewards is None or (len(rewards) == len(list(trajectory.choices())) and all(map(math.isfinite, rewards)))


def step_advantages(members: Sequence[Trajectory], *, divide: bool) -> list[list[float]]:
    """The advantage of each turn of each member: its reward less the mean over all turns of the group.

    `divide`: over the standard deviation (unbiased) + 1e-4. Empty for members without step rewards.
    """
    rewards = [reward for member in members for reward in member.step_rewards or ()]
    if not rewards:
        return [[] for _ in members]
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / max(1, len(rewards) - 1)) + 1e-4 if divide else 1.0
    return [[(reward - mean) / spread for reward in member.step_rewards or ()] for member in members]


def token_advantages(outcome: float, turns: Sequence[float], tokens: TokenSequence) -> list[float]:
    """Of each trained token: the trajectory's advantage, its own turn's and those of later turns of the sequence.

    `turns`: the turns' advantages. `[T]`
    """
    ends = [(position, turns[turn]) for turn, position in tokens.turn_ends.items()] if turns else []
    return [
        outcome + math.fsum(advantage for end, advantage in ends if end >= position)
        for position, trained in enumerate(tokens.sampled)
        if trained
    ]


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
