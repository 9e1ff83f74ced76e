"""A number for members without a reward, for frameworks that need one beside their mask.

    with_mean([0.9, None, 0.3])     [0.9, 0.6, 0.3]

The mean of the others leaves the group's baseline where it is. It is no score: whoever uses it masks the member, or
says why its advantage is zero. A framework that divides by the group's standard deviation counts it among the members.
"""

import logging
from collections.abc import Sequence

from gavel.rewards.unscored import reason
from gavel.scenarios.group import TrajectoryGroup

_logger = logging.getLogger("gavel.rewards")


def with_mean(rewards: Sequence[float | None]) -> list[float]:
    """The rewards, with their mean in place of missing ones; all 0.0 when every one is missing."""
    given = [reward for reward in rewards if reward is not None]
    mean = sum(given) / len(given) if given else 0.0
    return [mean if reward is None else reward for reward in rewards]


def log_missing(judged: TrajectoryGroup, rewards: Sequence[float | None]) -> None:
    """Logs that members have no reward, with the reason: a warning, unless they are all alike."""
    missing = sum(reward is None for reward in rewards)
    if missing:
        alike = judged.judgement is not None and judged.judgement.status == "degenerate"
        level = logging.INFO if alike else logging.WARNING
        _logger.log(level, "%d of %d members of a group are left out: %s", missing, len(rewards), reason(judged))
