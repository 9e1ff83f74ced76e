"""Generalized advantage estimation (GAE, arXiv 1506.02438) over the trained tokens of one sequence.

gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=1.0)  ->  [0.5, 0.5]   sum of the later rewards, minus the value
gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=0.0)  ->  [0.0, 0.5]   one-step temporal differences
"""

from collections.abc import Sequence


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
