"""Judged groups -> the sequences to train on, and an account of what was left out and why.

Groups without a signal are dropped before anything is tokenised; with a value head no group is needed
for one. A member without a score is left out; it never counts as zero. Nor is a member trained whose
tokens cannot be trusted.
"""

import logging
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gavel.judge.shaping import NEAR_TIE
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import Ppo, TrainConfig
from gavel.trainer.data.advantages import advantages, has_signal
from gavel.trainer.data.mismatch import MismatchKind, mismatches
from gavel.trainer.data.packing import unique_tokens
from gavel.trainer.data.step_rewards import fits_its_turns, token_rewards
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, sequences

_ROUNDING = 1e-3
"""Nats by which the log-prob of a sure token may come out above 0."""

logger = logging.getLogger(__name__)


class TokenSpace(Protocol):
    """What a base model makes of token ids."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """What they spell, special tokens included."""
        ...


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
    token_mismatches: Counter[MismatchKind] = field(default_factory=Counter)
    """Turns that do not go on from the tokens of the turn before them."""

    @property
    def trained_tokens(self) -> int:
        return sum(sequence.tokens.trained_tokens for sequence in self.sequences)

    @property
    def unique_tokens(self) -> int:
        """Tokens of the sequences, every prefix that several of them share counted once."""
        return unique_tokens([sequence.tokens for sequence in self.sequences]) if self.sequences else 0

    def why_empty(self) -> str:
        """One sentence for a batch that trains nothing."""
        reasons = [
            f"{count} {reason}" for reason, count in (self.left_out_groups + self.left_out_members).most_common()
        ]
        return "nothing was trained: " + ("; ".join(reasons) if reasons else "nothing was given")


SAME_SCORES = "groups whose members all have the same score"
SCORES_TOO_CLOSE = "groups whose scores differ by less than the minimal spread"
UNRELIABLE = "groups whose scores differ no more than the judge's votes do"
IDENTICAL = "groups whose members are all identical"
TOO_FEW = "groups with fewer than two scored members"
UNSCORED = "members without a score"
NOT_FINITE = "members whose reward is not a finite number"
NOTHING_SAMPLED = "members with nothing sampled"
NO_LOGPROBS = "members whose sampler gave log-probs that are none"
TOO_LONG = "members longer than the model's context"
UNFIT_STEP_REWARDS = "members whose step rewards are not one finite number for each sampled turn"
REFUSED: dict[MismatchKind, str] = {
    "retokenisation": "members whose sampled text came back in other tokens",
    "truncation": "members whose earlier turns were cut out of a later prompt",
    "client_edit": "members whose sampled turns were edited before the next prompt",
}
NO_MEMBER = "groups without a member that can be trained"


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


def make_batch(groups: Iterable[TrajectoryGroup], config: TrainConfig, space: TokenSpace) -> Batch:
    """Each member with the advantage over its group or, for `Ppo`, with the rewards of its tokens.

    Raises `TokenError` when a scored trajectory with a signal has a turn without token ids, or with ids that `space`
    does not know.
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
        before = batch.trajectories
        for trajectory, advantage in zip(members, gains, strict=True):
            found = sequences(trajectory)
            unfit = _why_unfit(found, space)  # before anything is spelled: it refuses tokens that spell nothing
            kinds = mismatches(trajectory, space.decode)
            batch.token_mismatches += kinds
            if reason := unfit or _why_refused(kinds, config):
                batch.left_out_members[reason] += 1
                continue
            batch.trajectories += 1
            batch.sequences += [
                TrainedSequence(tokens, advantage, batch.groups, token_rewards(trajectory, tokens) if valued else ())
                for tokens in found
            ]
        if batch.trajectories > before:
            batch.groups += 1
        else:
            batch.left_out_groups[NO_MEMBER] += 1
    if refused := sum(batch.left_out_members[reason] for reason in REFUSED.values()):
        logger.warning("%d members are left out for their tokens. %s", refused, _HOW_TO_KEEP)
    return batch


_HOW_TO_KEEP = (
    "Send each reply back as it came, put a context that the agent rewrites into additional_histories, or set "
    'on_token_mismatch="branch" in TrainConfig to train them as several sequences (docs/tokens.md).'
)


def _why_unfit(found: list[TokenSequence], space: TokenSpace) -> str | None:
    if not found:
        return NOTHING_SAMPLED
    if any(len(tokens.token_ids) > space.max_context for tokens in found):
        return TOO_LONG
    outside = {token for tokens in found for token in tokens.token_ids if not 0 <= token < space.vocabulary}
    if outside:
        raise TokenError(
            f"a sampled turn holds the token {min(outside)}, and the base model has {space.vocabulary} tokens",
            "Train the model that sampled it: its tokenizer is not the one of this base model.",
        )
    if any(not (math.isfinite(lp) and lp <= _ROUNDING) for tokens in found for lp in tokens.logprobs):
        return NO_LOGPROBS
    return None


def _why_refused(kinds: Counter[MismatchKind], config: TrainConfig) -> str | None:
    if config.on_token_mismatch == "branch":
        return None
    return next((reason for kind, reason in REFUSED.items() if kinds[kind]), None)


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
