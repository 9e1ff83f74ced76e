"""Judged groups -> the sequences to train on, and the counts of what was left out and why.

Groups without a signal are dropped before their tokens are looked at (with a value head every group has one). A
member without a score is left out and never counts as zero; so is a member whose tokens are not exactly those that
were sampled: where a later prompt does not contain the earlier turn's tokens, what the history shows (and the judge has
read) may not be what the policy saw. The chat template alone can cause this, which is harmless; any other cause means
that a sampled turn was changed between endpoint and agent.

Rewards of single turns (`Trajectory.step_rewards`) and of trajectories are assigned to trained tokens. With a value
head (PPO) a turn's reward is given at the turn's last token, the trajectory's reward at the last trained token of each
of its sequences; every other trained token has reward 0. A choice whose extra field `token_rewards` has a number for
each of its tokens says which parts of the trajectory's reward are paid at these; the rest is paid at the end. Without a
value head, the turns of a group are compared (`step_advantages`): [[1, 0], [0]] has the mean 1/3, so the first member's
turns have 2/3 and -1/3, and the tokens of its first turn get their sum. A sampler may also give the advantage of each
token itself (`Choice.token_advantages`), which then stands in place of what the rewards give.
"""

import logging
import math
import random
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from openai.types.chat.chat_completion import Choice

from gavel.judge.audit.health import states_health, states_mislead
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import MessageOrChoice, Trajectory
from gavel.trainer.config import Ppo, TrainConfig
from gavel.trainer.data.advantages import credit, critic_advantages, group_advantages
from gavel.trainer.data.left_out import LeftOut, counted_left_out
from gavel.trainer.data.packing import unique_tokens
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, Turn, sequences, turns_of

TOKEN_ADVANTAGES = "token_advantages"
"""Field of a `Choice`: the advantage of each of its tokens, in place of what the rewards give."""


def fits_its_turns(trajectory: Trajectory) -> bool:
    """Whether the trajectory's step rewards, if it has any, are one finite number for each sampled turn, and the token
    rewards of a turn one for each of its tokens."""
    for choice in trajectory.choices():
        own = _token_rewards(choice)
        ids = (choice.model_extra or {}).get("token_ids") or ()
        if own is not None and not (len(own) == len(ids) and all(map(math.isfinite, own))):
            return False
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
    numbers = sorted(tokens.turn_ends, key=tokens.turn_ends.__getitem__)
    paid = credit([turns[number] for number in numbers], 1.0) if turns else [0.0] * len(numbers)
    return _on_tokens({number: outcome + value for number, value in zip(numbers, paid, strict=True)}, tokens)


def _on_tokens(paid: Mapping[int, float], tokens: TokenSequence) -> list[float]:
    """Of each trained token what its turn is paid. `[T]`"""
    ends = sorted((end, number) for number, end in tokens.turn_ends.items())
    positions = (position for position, trained in enumerate(tokens.sampled) if trained)
    return [paid[ends[bisect_left(ends, (position,))][1]] for position in positions]


def critic_credit(members: Sequence[Trajectory], gae_lambda: float) -> list[dict[int, float]]:
    """What the turns of each member of a group are paid by the judge's states (`critic_advantages`), by their number in
    `choices()`; empty for a member without states of them. Turns of further histories are not in it: the states are
    those of the main conversation."""
    states: list[list[float]] = []
    for member in members:
        sampled = [isinstance(item, Choice) for item in member.messages_and_choices if _is_assistants(item)]
        given = member.judgement.states if member.judgement else []
        fits = len(given) == len(sampled)
        states.append([state for state, own in zip(given, sampled, strict=True) if own] if fits else [])
    paid = critic_advantages([member.reward or 0.0 for member in members], states, gae_lambda)
    return [dict(enumerate(own)) for own in paid]


def _is_assistants(item: MessageOrChoice) -> bool:
    return isinstance(item, Choice) or item.get("role") == "assistant"


def gives_advantages(trajectory: Trajectory) -> bool:
    """Whether a turn of it carries the advantages of its tokens."""
    return any(TOKEN_ADVANTAGES in (choice.model_extra or {}) for choice in trajectory.choices())


def has_given_signal(trajectory: Trajectory) -> bool:
    """Whether one of the advantages that its turns carry is not 0."""
    return any(any((choice.model_extra or {}).get(TOKEN_ADVANTAGES) or ()) for choice in trajectory.choices())


def given_advantages(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """Of each trained token of one of the trajectory's sequences: what its turn carries, 0 for a turn without. `[T]`

    Raises `TokenError` for a turn with another number of advantages than tokens, or with one that is not finite.
    """
    choices = list(trajectory.choices())
    found = dict.fromkeys((position for position, trained in enumerate(tokens.sampled) if trained), 0.0)
    for turn, end in tokens.turn_ends.items():
        extra = choices[turn].model_extra or {}
        given: list[float] | None = extra.get(TOKEN_ADVANTAGES)
        if given is None:
            continue
        length = len(extra["token_ids"])
        if len(given) != length or not all(map(math.isfinite, given)):
            raise TokenError(
                f"a sampled turn has {length} token ids and {len(given)} token_advantages, or one is not finite",
                "Give one finite number for each token.",
            )
        found |= {end - length + 1 + at: float(value) for at, value in enumerate(given)}
    return list(found.values())


def token_rewards(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """The rewards of the trained tokens of one of the trajectory's sequences. `[T]`, at least one token

    Every sequence of the trajectory (a forked history, a sub-agent's conversation) ends with the trajectory's reward.
    Of a turn that a further history repeats, the first one's step reward counts.
    """
    rewards = dict.fromkeys((position for position, trained in enumerate(tokens.sampled) if trained), 0.0)
    if trajectory.step_rewards is not None:
        for turn, position in tokens.turn_ends.items():
            rewards[position] += trajectory.step_rewards[turn]
    early = 0.0
    for turn, choice in enumerate(trajectory.choices()):
        if (own := _token_rewards(choice)) is None or turn not in tokens.turn_ends:
            continue
        for at, reward in enumerate(own, tokens.turn_ends[turn] + 1 - len(own)):
            rewards[at] += reward
            early += reward
    found = list(rewards.values())
    found[-1] += (trajectory.reward or 0.0) - early
    return found


def _token_rewards(choice: Choice) -> Sequence[float] | None:
    return (choice.model_extra or {}).get("token_rewards")


MismatchKind = Literal["template", "retokenisation", "truncation", "client_edit"]
"""template: the messages are as sampled, and the chat template renders them otherwise (earlier thinking left out).
retokenisation: the same text in other tokens. truncation: earlier content is missing, or a turn that ended at its limit
is rendered otherwise. client_edit: an earlier message was changed."""

Decode = Callable[[Sequence[int]], str]


def mismatches(trajectory: Trajectory, decode: Decode) -> Counter[MismatchKind]:
    """How many turns do not continue the turn before them in their history, by kind.

    A turn may also be sampled again from the same prompt, and any of these samples may be continued. `decode` gives the
    text of token ids, including special tokens. Raises `TokenError` for a turn without token ids.
    """
    pairs: list[tuple[Turn, Turn]] = []
    for history in trajectory.histories():
        turns = turns_of(history)
        for number, turn in enumerate(turns[1:], 1):
            before = turns[number - 1]
            samples = [earlier for earlier in turns[:number] if earlier.prompt_ids == before.prompt_ids]
            continues = turn.prompt_ids == before.prompt_ids or any(turn.follows(sample) for sample in samples)
            if not continues and (before, turn) not in pairs:
                pairs.append((before, turn))
    return Counter(_kind(before, turn, decode) for before, turn in pairs)


def _kind(before: Turn, turn: Turn, decode: Decode) -> MismatchKind:
    agree = _agreeing(before.prompt_ids + before.token_ids, turn.prompt_ids)
    context, whole, prompt = (
        decode(ids[agree:]) for ids in (before.prompt_ids, before.prompt_ids + before.token_ids, turn.prompt_ids)
    )
    if prompt.startswith(whole):
        return "retokenisation"
    if turn.continues:
        return "template"
    dropped = len(turn.prompt_ids) <= len(before.prompt_ids)
    said = decode(before.token_ids)
    return "truncation" if dropped or before.cut or _begins_later(context, said, prompt) else "client_edit"


def _begins_later(context: str, said: str, prompt: str) -> bool:
    """Whether `prompt` is `context` + `said` and more, with one stretch of the context missing."""
    kept = _agreeing(context, prompt)
    end = prompt.find(said, kept)
    return end >= 0 and context.endswith(prompt[kept:end])


def _agreeing(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common prefix."""
    differs = (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differs, min(len(one), len(other)))


_ROUNDING = 1e-3
"""Nats by which rounding may bring a log-prob above 0."""

logger = logging.getLogger(__name__)


class TokenSpace(Protocol):
    """The tokens of a base model."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Their text, including special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """The tokens of `space`, within the context that an engine serves."""

    space: TokenSpace
    max_context: int

    @property
    def vocabulary(self) -> int:
        return self.space.vocabulary

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.space.decode(token_ids)


@dataclass(frozen=True, slots=True)
class TrainedSequence:
    """A token sequence with the advantage of its trajectory and the number of its group."""

    tokens: TokenSequence
    advantage: float
    """Relative to its group; 0 with a value head, which computes advantages later."""
    group: int
    """Number of its group; members of a group share prefixes, which are computed once."""
    rewards: Sequence[float] = ()
    """Rewards of its trained tokens, for a loss with a value head. `[T]`"""
    advantages: Sequence[float] = ()
    """Of its trained tokens, where turns or tokens have their own; empty: `advantage` for all. `[T]`"""


@dataclass(slots=True)
class Batch:
    """The sequences of one training step."""

    sequences: list[TrainedSequence] = field(default_factory=list[TrainedSequence])
    trajectories: int = 0
    groups: int = 0
    left_out_members: Counter[LeftOut] = field(default_factory=Counter[LeftOut])
    """Members of groups with a signal that are not trained themselves, by reason."""
    left_out_groups: Counter[LeftOut] = field(default_factory=Counter[LeftOut])
    """Whole groups that are not trained, by reason."""
    token_mismatches: Counter[MismatchKind] = field(default_factory=Counter[MismatchKind])
    """Turns whose prompt does not continue the tokens of the turn before them."""
    critic: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of `advantage="critic"`: the lambda of this step, and the share of members without states."""

    @property
    def trained_tokens(self) -> int:
        return sum(sequence.tokens.trained_tokens for sequence in self.sequences)

    @property
    def unique_tokens(self) -> int:
        """Tokens of the sequences; a prefix shared by several is counted once."""
        return unique_tokens([sequence.tokens for sequence in self.sequences]) if self.sequences else 0

    def why_empty(self) -> str:
        """One sentence for a batch that trains nothing."""
        left_out = self.left_out_groups + self.left_out_members
        reasons = [counted_left_out(reason, count) for reason, count in left_out.most_common()]
        return "nothing was trained: " + ("; ".join(reasons) if reasons else "nothing was given")


_MISMATCH_REASONS: dict[MismatchKind, LeftOut] = {
    "retokenisation": LeftOut.RETOKENISATION,
    "truncation": LeftOut.TRUNCATION,
    "client_edit": LeftOut.CLIENT_EDIT,
}
"""A turn that the chat template alone shows otherwise is no reason to leave a member out."""


_EQUAL = frozenset({LeftOut.NO_SIGNAL, LeftOut.NEAR_TIE, LeftOut.UNRELIABLE_SCORES, LeftOut.IDENTICAL_MEMBERS})


def has_signal(group: TrajectoryGroup, config: TrainConfig) -> bool:
    """False for a group whose members did equally well. One that failed, or was not scored, is another matter."""
    found = _group_advantages(group, _scored(group), config)
    return not (isinstance(found, LeftOut) and found in _EQUAL)


def _scored(group: TrajectoryGroup) -> list[Trajectory]:
    return [t for t in group if t.reward is not None and math.isfinite(t.reward)]


def _group_advantages(
    group: TrajectoryGroup, members: Sequence[Trajectory], config: TrainConfig
) -> list[float] | LeftOut:
    if group.judgement is not None and group.judgement.status == "degenerate" and len(group) > 1:
        return LeftOut.IDENTICAL_MEMBERS
    if group.trajectories and not members:
        return LeftOut.NO_TRAINABLE_MEMBER
    has_given = any(map(has_given_signal, members))
    if members and all(map(gives_advantages, members)):
        return [0.0] * len(members) if has_given else LeftOut.NO_SIGNAL
    found = group_advantages(
        [member.reward or 0.0 for member in members],
        [member.judgement.standard_error if member.judgement else None for member in members],
        kind=config.advantage,
        minimal_spread=config.minimal_spread,
        p_right=group.judgement and group.judgement.p_right,
    )
    if found in (LeftOut.NO_SIGNAL, LeftOut.NEAR_TIE) and config.step_advantages:
        rewards = [reward for member in members for reward in member.step_rewards or ()]
        if rewards and max(rewards) - min(rewards) > config.minimal_spread:
            return [0.0] * len(members)
    return [0.0] * len(members) if isinstance(found, LeftOut) and has_given else found


def make_batch(groups: Iterable[TrajectoryGroup], config: TrainConfig, space: TokenSpace) -> Batch:
    """Each member with its advantage over the group or, for `Ppo`, with the rewards of its tokens.

    A member whose turns carry the advantages of their tokens is trained by these; it counts in its group's mean.

    Raises `TokenError` when a scored trajectory with a signal has a turn without token ids, or with ids that `space`
    does not know.
    """
    batch = Batch()
    has_value_head = isinstance(config.loss, Ppo)
    gae_lambda = config.gae_lambda
    if config.advantage == "critic":
        groups = list(groups)
        gae_lambda = 1.0 if states_mislead(states_health(groups)) else gae_lambda
    stateless: list[bool] = []
    compared: dict[str, list[float]] = {}
    """The advantages of all members of groups with a signal, by scenario."""
    origins: list[str] = []
    """The scenario of each group."""
    for group in groups:
        members = _scored(group)
        unscored = sum(trajectory.reward is None for trajectory in group)
        left_out = Counter(
            {LeftOut.UNSCORED: unscored, LeftOut.REWARD_NOT_FINITE: len(group) - len(members) - unscored}
        )
        if has_value_head or config.step_advantages:
            fitting = [trajectory for trajectory in members if fits_its_turns(trajectory)]
            left_out[LeftOut.STEP_REWARDS_MISMATCH] = len(members) - len(fitting)
            members = fitting
        outcome = [0.0] * len(members) if has_value_head else _group_advantages(group, members, config)
        if isinstance(outcome, LeftOut):
            batch.left_out_groups[outcome] += 1
            if outcome in (LeftOut.ONE_MEMBER, LeftOut.NO_TRAINABLE_MEMBER):
                batch.left_out_members += left_out  # they are why
            continue
        batch.left_out_members += left_out
        origin = str(group.trajectories[0].metadata.get("scenario", "")) if group.trajectories else ""
        compared.setdefault(origin, []).extend(outcome)
        if not (has_value_head or config.step_advantages) and any(member.step_rewards for member in members):
            warnings.warn(_STEPS_UNUSED, stacklevel=2)
        before = batch.trajectories
        turns = step_advantages(members, divide=config.advantage == "std") if config.step_advantages else []
        credited = critic_credit(members, gae_lambda) if config.advantage == "critic" else []
        stateless += [not own for own in credited]
        for number, (trajectory, advantage) in enumerate(zip(members, outcome, strict=True)):
            found = sequences(trajectory)
            unfit = _why_unfit(found, space)  # first: it refuses token ids that cannot be decoded
            kinds = mismatches(trajectory, space.decode)
            batch.token_mismatches += kinds
            unfit = unfit or (LeftOut.SHAPED_SAMPLING if _shaped(trajectory) else None)
            ran_out = LeftOut.RAN_OUT if config.mask_truncated and _ran_out(trajectory) else None
            if reason := unfit or ran_out or _why_refused(kinds, config):
                batch.left_out_members[reason] += 1
                continue
            batch.trajectories += 1
            steps = turns[number] if turns else []
            own = credited[number] if credited else {}
            batch.sequences += [
                TrainedSequence(
                    tokens,
                    advantage,
                    batch.groups,
                    token_rewards(trajectory, tokens) if has_value_head else (),
                    _own_advantages(trajectory, tokens, advantage, steps, own),
                )
                for tokens in found
            ]
        if batch.trajectories > before:
            batch.groups += 1
            origins.append(origin)
        else:
            batch.left_out_groups[LeftOut.NO_TRAINABLE_MEMBER] += 1
    if stateless:
        batch.critic = {"critic/lambda": gae_lambda, "critic/stateless": sum(stateless) / len(stateless)}
    if config.normalize_over_batch and compared and not config.kl_in_reward:  # otherwise it follows the divergence
        scales = {
            origin: math.sqrt(math.fsum(value**2 for value in values) / len(values)) if values else 1.0
            for origin, values in compared.items()
        }
        batch.sequences = [
            replace(each, advantage=each.advantage / (scales[origins[each.group]] or 1.0)) for each in batch.sequences
        ]
    if refused := sum(batch.left_out_members[reason] for reason in _MISMATCH_REASONS.values()):
        logger.warning("%d members are left out for their tokens. %s", refused, _HOW_TO_KEEP)
    if shaped := batch.left_out_members[LeftOut.SHAPED_SAMPLING]:
        logger.warning("%d members are left out for how they were sampled. %s", shaped, _HOW_TO_SAMPLE)
    return batch


def _own_advantages(
    trajectory: Trajectory,
    tokens: TokenSequence,
    advantage: float,
    steps: Sequence[float],
    credited: Mapping[int, float],
) -> list[float]:
    """Of each trained token, where they differ; empty where all have `advantage`. `steps`: those of its turns, of which
    a token gets its own's and later ones' too. `credited`: what its turns have in place of `advantage`."""
    if gives_advantages(trajectory):
        return given_advantages(trajectory, tokens)
    if credited:
        return _on_tokens({number: credited.get(number, advantage) for number in tokens.turn_ends}, tokens)
    return token_advantages(advantage, steps, tokens) if steps else []


_STEPS_UNUSED = "step_rewards of trajectories are not trained on: set step_advantages=True or loss=Ppo() in TrainConfig"
_HOW_TO_KEEP = (
    "Send each reply back as it came, put a context that the agent rewrites into additional_histories, or set "
    'on_token_mismatch="branch" in TrainConfig to train them as several sequences (docs/tokens.md).'
)

_HOW_TO_SAMPLE = (
    "Leave top_p, penalties, response_format and a forced tool_choice out of requests whose turns are to be trained: "
    "such a turn is of another distribution than the policy's (docs/endpoint.md)."
)


def _why_unfit(found: list[TokenSequence], space: TokenSpace) -> LeftOut | None:
    if not found:
        return LeftOut.NOTHING_SAMPLED
    if any(len(tokens.token_ids) > space.max_context for tokens in found):
        return LeftOut.TOO_LONG
    outside = {token for tokens in found for token in tokens.token_ids if not 0 <= token < space.vocabulary}
    if outside:
        raise TokenError(
            f"a sampled turn holds the token {min(outside)}, and the base model has {space.vocabulary} tokens",
            "Train the model that sampled it: its tokenizer is not the one of this base model.",
        )
    if any(not (math.isfinite(lp) and lp <= _ROUNDING) for tokens in found for lp in tokens.logprobs):
        return LeftOut.INVALID_LOGPROBS
    return None


def _shaped(trajectory: Trajectory) -> bool:
    return any((choice.model_extra or {}).get("shaped_by") for choice in trajectory.choices())


def _ran_out(trajectory: Trajectory) -> bool:
    return trajectory.status == "truncated" or any(choice.finish_reason == "length" for choice in trajectory.choices())


def _why_refused(kinds: Counter[MismatchKind], config: TrainConfig) -> LeftOut | None:
    if config.on_token_mismatch == "branch":
        return None
    return next((reason for kind, reason in _MISMATCH_REASONS.items() if kinds[kind]), None)


def mini_batches(groups: Sequence[int], count: int, seed: str) -> list[list[int]]:
    """Indices of a batch's sequences in `count` parts of whole groups; `groups` are the sequences' groups.

    The groups are shuffled by `seed` and distributed evenly; with fewer groups there are fewer parts.
    """
    numbers = sorted(set(groups))
    count = min(count, len(numbers))
    if count > 1:
        random.Random(seed).shuffle(numbers)
    part = {number: at % count for at, number in enumerate(numbers)}
    return [[at for at, group in enumerate(groups) if part[group] == which] for which in range(count)]
