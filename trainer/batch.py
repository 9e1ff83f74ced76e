"""Judged groups -> the sequences to train on, and an account of what was left out and why.

Groups without a signal are dropped before anything is tokenised; with a value head no group is needed
for one. A member without a score is left out; it never counts as zero.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from judge.shaping import NEAR_TIE
from scenarios.trajectory import Trajectory, TrajectoryGroup
from trainer.advantages import advantages, has_signal
from trainer.config import Ppo, TrainConfig
from trainer.tokens import TokenSequence, sequences
from trainer.values import fits_its_turns, token_rewards


@dataclass(frozen=True, slots=True)
class TrainedSequence:
    """A token sequence with the advantage of its trajectory and the number of its group."""

    tokens: TokenSequence
    advantage: float
    """Over its group; 0 where a value head will tell."""
    group: int
    """Members of a group share it, and the prefixes that are computed once."""
    rewards: Sequence[float] = ()
    """Of its trained tokens, where a value head needs them. `[T]`"""


@dataclass(slots=True)
class Batch:
    """What one training step learns from."""

    sequences: list[TrainedSequence] = field(default_factory=list)
    trajectories: int = 0
    groups: int = 0
    left_out_members: Counter[str] = field(default_factory=Counter)
    """Members of groups with a signal that are not trained themselves, by reason."""
    left_out_groups: Counter[str] = field(default_factory=Counter)
    """Whole groups that are not trained, by reason."""

    @property
    def trained_tokens(self) -> int:
        return sum(sequence.tokens.trained_tokens for sequence in self.sequences)

    def why_empty(self) -> str:
        """One sentence for a batch that trains nothing."""
        reasons = [
            f"{count} {reason}" for reason, count in (self.left_out_groups + self.left_out_members).most_common()
        ]
        return "nothing was trained: " + ("; ".join(reasons) if reasons else "there were no groups")


SAME_SCORES = "groups whose members all have the same score"
SCORES_TOO_CLOSE = "groups whose scores differ by less than the minimal spread"
UNRELIABLE = "groups whose scores differ no more than the judge's votes do"
IDENTICAL = "groups whose members are all identical"
TOO_FEW = "groups with fewer than two scored members"
UNSCORED = "members without a score"
NOT_FINITE = "members whose reward is not a finite number"
NOTHING_SAMPLED = "members with nothing sampled"
NO_MEMBER = "groups without a member that can be trained"
UNFIT_STEP_REWARDS = "members whose step rewards are not one finite number for each sampled turn"


def _why_no_signal(group: TrajectoryGroup, rewards: list[float], minimal_spread: float) -> str | None:
    if group.judgement is not None and group.judgement.status == "degenerate" and len(group) > 1:
        return IDENTICAL
    if len(rewards) < 2:
        return TOO_FEW
    if has_signal(rewards, minimal_spread):
        return None
    return SCORES_TOO_CLOSE if group.metrics.get(NEAR_TIE) else SAME_SCORES


def _gains(group: TrajectoryGroup, members: Sequence[Trajectory], config: TrainConfig) -> list[float] | str:
    """The members' advantages, or why they have none."""
    rewards = [trajectory.reward or 0.0 for trajectory in members]
    if reason := _why_no_signal(group, rewards, config.minimal_spread):
        return reason
    errors = [member.judgement.standard_error if member.judgement else None for member in members]
    found = advantages(rewards, config.advantage, errors)
    if any(found):
        return found
    return UNRELIABLE if config.advantage == "shrunk" else SAME_SCORES


def make_batch(groups: Iterable[TrajectoryGroup], config: TrainConfig) -> Batch:
    """Each member with the advantage over its group or, for `Ppo`, with the rewards of its tokens.

    Raises `TokenError` when a scored trajectory with a signal has a turn without token ids.
    """
    batch = Batch()
    valued = isinstance(config.loss, Ppo)
    for group in groups:
        members = [t for t in group if t.reward is not None and math.isfinite(t.reward)]
        unscored = sum(trajectory.reward is None for trajectory in group)
        left_out = Counter({UNSCORED: unscored, NOT_FINITE: len(group) - len(members) - unscored})
        if valued:
            fitting = [trajectory for trajectory in members if fits_its_turns(trajectory)]
            left_out[UNFIT_STEP_REWARDS] = len(members) - len(fitting)
            members, gains = fitting, [0.0] * len(fitting)
        else:
            gains = _gains(group, members, config)
        if isinstance(gains, str):
            batch.left_out_groups[gains] += 1
            continue
        batch.left_out_members += left_out
        if not members:
            batch.left_out_groups[NO_MEMBER] += 1
            continue
        for trajectory, advantage in zip(members, gains, strict=True):
            found = [tokens for tokens in sequences(trajectory) if tokens.trained_tokens]
            if not found:
                batch.left_out_members[NOTHING_SAMPLED] += 1
                continue
            batch.trajectories += 1
            batch.sequences += [
                TrainedSequence(tokens, advantage, batch.groups, token_rewards(trajectory, tokens) if valued else ())
                for tokens in found
            ]
        batch.groups += 1
    return batch


def mini_batches(groups: Sequence[int], count: int, seed: str) -> list[list[int]]:
    """The positions of a batch's sequences, in `count` parts of whole groups; `groups` are the sequences' groups.

    The groups are shuffled by `seed` and spread as evenly as they go; with fewer groups there are fewer parts.
    """
    numbers = sorted(set(groups))
    count = min(count, len(numbers))
    if count > 1:
        random.Random(seed).shuffle(numbers)
    part = {number: place % count for place, number in enumerate(numbers)}
    return [[at for at, group in enumerate(groups) if part[group] == which] for which in range(count)]
