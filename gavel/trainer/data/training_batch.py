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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from openai.types.chat.chat_completion import Choice

from gavel.judge.audit.health import states_health, states_mislead
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import Ppo, TrainConfig
from gavel.trainer.data.advantages import credit, critic_advantages, group_advantages
from gavel.trainer.data.left_out import LeftOut, counted_left_out
from gavel.trainer.data.packing import unique_tokens
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, Turn, sequences, turns_of

TOKEN_ADVANTAGES = "token_advantages"
"""Field of a `Choice`: the advantage of each of its tokens, in place of what the rewards give."""


def _field(choice: Choice, name: str) -> Any:
    return (choice.model_extra or {}).get(name)


def fits_its_turns(trajectory: Trajectory) -> bool:
    """Whether the trajectory's step rewards, if it has any, are one finite number for each sampled turn, and the token
    rewards of a turn one for each of its tokens."""
    choices, rewards = list(trajectory.choices()), trajectory.step_rewards
    pairs = [(_field(choice, "token_rewards"), _field(choice, "token_ids") or ()) for choice in choices]
    return all(
        own is None or (len(own) == len(of) and all(map(math.isfinite, own)))
        for own, of in (*pairs, (rewards, choices))
    )


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


def critic_credit(members: Sequence[Trajectory], gae_lambda: float) -> list[dict[int, float]]:
    """What the turns of each member of a group are paid by the judge's states (`critic_advantages`), by their number in
    `choices()`; empty for a member without states of them. Turns of further histories are not in it: the states are
    those of the main conversation."""
    states: list[list[float]] = []
    for member in members:
        turns = (i for i in member.messages_and_choices if isinstance(i, Choice) or i.get("role") == "assistant")
        sampled = [isinstance(turn, Choice) for turn in turns]
        given = member.judgement.states if member.judgement else []
        fits = len(given) == len(sampled)
        states.append([state for state, own in zip(given, sampled, strict=True) if own] if fits else [])
    paid = critic_advantages([member.reward or 0.0 for member in members], states, gae_lambda)
    return [dict(enumerate(own)) for own in paid]


def gives_advantages(trajectory: Trajectory) -> bool:
    """Whether a turn of it carries the advantages of its tokens."""
    return any(_field(choice, TOKEN_ADVANTAGES) is not None for choice in trajectory.choices())


def given_advantages(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """Of each trained token of one of the trajectory's sequences: what its turn carries, 0 for a turn without. `[T]`

    Raises `TokenError` for a turn with another number of advantages than tokens, or with one that is not finite.
    """
    choices = list(trajectory.choices())
    found = dict.fromkeys((position for position, trained in enumerate(tokens.sampled) if trained), 0.0)
    for turn, end in tokens.turn_ends.items():
        if (given := _field(choices[turn], TOKEN_ADVANTAGES)) is None:
            continue
        length = len(_field(choices[turn], "token_ids"))
        if len(given) != length or not all(map(math.isfinite, given)):
            raise TokenError(
                f"a sampled turn has {length} token ids and {len(given)} token_advantages, or one is not finite",
                "Give one finite number for each token.",
            )
        found |= {end - length + 1 + at: float(value) for at, value in enumerate(given)}
    return list(found.values())


def token_advantages(
    trajectory: Trajectory,
    tokens: TokenSequence,
    outcome: float,
    steps: Sequence[float],
    credited: Mapping[int, float],
) -> list[float]:
    """Of each trained token of one of the trajectory's sequences, where they differ; else empty. `[T]`

    Those that its turns carry. Else, by turn, what is `credited` to it in place of the trajectory's `outcome`. Else
    that and the advantages of its own turn and of the sequence's later ones, `steps`.
    """
    if gives_advantages(trajectory):
        return given_advantages(trajectory, tokens)
    if not credited and not steps:
        return []
    ends = sorted((end, number) for number, end in tokens.turn_ends.items())
    paid = {number: credited.get(number, outcome) for _, number in ends}
    if not credited:
        later = credit([steps[number] for _, number in ends], 1.0)
        paid = {number: outcome + value for (_, number), value in zip(ends, later, strict=True)}
    positions = (position for position, trained in enumerate(tokens.sampled) if trained)
    return [paid[ends[bisect_left(ends, (position,))][1]] for position in positions]


def token_rewards(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """The rewards of the trained tokens of one of the trajectory's sequences. `[T]`, at least one token

    Every sequence of the trajectory (a forked history, a sub-agent's conversation) ends with the trajectory's reward.
    Of a turn that a further history repeats, the first one's step reward counts.
    """
    rewards = dict.fromkeys((position for position, trained in enumerate(tokens.sampled) if trained), 0.0)
    for turn, position in tokens.turn_ends.items():
        rewards[position] += trajectory.step_rewards[turn] if trajectory.step_rewards is not None else 0.0
    early = 0.0
    for turn, choice in enumerate(trajectory.choices()):
        own = _field(choice, "token_rewards") if turn in tokens.turn_ends else None
        for at, reward in enumerate(own or (), tokens.turn_ends.get(turn, 0) + 1 - len(own or ())):
            rewards[at] += reward
            early += reward
    found = list(rewards.values())
    found[-1] += (trajectory.reward or 0.0) - early
    return found


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

    @property
    def decode(self) -> Decode:
        """Gives the text of token ids, including special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """The tokens of a policy, within the context that an engine serves."""

    vocabulary: int
    max_context: int
    decode: Decode


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


_CHANGED: tuple[MismatchKind, ...] = ("retokenisation", "truncation", "client_edit")
"""Reasons to leave a member out, as `LeftOut` names them too; that a template shows a turn otherwise is none."""
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
    nothing = [0.0] * len(members)
    has_given = any(any(_field(c, TOKEN_ADVANTAGES) or ()) for member in members for c in member.choices())
    if members and all(map(gives_advantages, members)):
        return nothing if has_given else LeftOut.NO_SIGNAL
    found = group_advantages(
        [member.reward or 0.0 for member in members],
        [member.judgement.standard_error if member.judgement else None for member in members],
        kind=config.advantage,
        minimal_spread=config.minimal_spread,
        p_right=group.judgement and group.judgement.p_right,
    )
    if found in (LeftOut.NO_SIGNAL, LeftOut.NEAR_TIE) and config.step_advantages:
        rewards = [reward for member in members for reward in member.step_rewards or ()]
        has_given |= bool(rewards) and max(rewards) - min(rewards) > config.minimal_spread
    return nothing if isinstance(found, LeftOut) and has_given else found


def make_batch(groups: Iterable[TrajectoryGroup], config: TrainConfig, space: TokenSpace) -> Batch:
    """Each member with its advantage over the group or, for `Ppo`, with the rewards of its tokens.

    A member whose turns carry the advantages of their tokens is trained by these; it counts in its group's mean.

    Raises `TokenError` when a scored trajectory with a signal has a turn without token ids, or with ids that `space`
    does not know.
    """
    batch, groups = Batch(), list(groups)
    has_value_head, by_critic = isinstance(config.loss, Ppo), config.advantage == "critic"
    gae_lambda = 1.0 if by_critic and states_mislead(states_health(groups)) else config.gae_lambda
    stateless: list[bool] = []
    compared: dict[str, list[float]] = defaultdict(list)
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
        compared[origin] += outcome
        if not (has_value_head or config.step_advantages) and any(member.step_rewards for member in members):
            warnings.warn(_STEPS_UNUSED, stacklevel=2)
        before = batch.trajectories
        turns: list[list[float]] = [[] for _ in members]
        credited: list[dict[int, float]] = [{} for _ in members]
        if config.step_advantages:
            turns = step_advantages(members, divide=config.advantage == "std")
        if by_critic:
            credited = critic_credit(members, gae_lambda)
            stateless += [not own for own in credited]
        for trajectory, advantage, steps, own in zip(members, outcome, turns, credited, strict=True):
            found = sequences(trajectory)
            unfit = _why_unfit(trajectory, found, space)  # first: it refuses token ids that cannot be decoded
            kinds = mismatches(trajectory, space.decode)
            batch.token_mismatches += kinds
            if reason := unfit or _why_refused(trajectory, kinds, config):
                batch.left_out_members[reason] += 1
                continue
            batch.trajectories += 1
            batch.sequences += [
                TrainedSequence(
                    tokens,
                    advantage,
                    batch.groups,
                    token_rewards(trajectory, tokens) if has_value_head else (),
                    token_advantages(trajectory, tokens, advantage, steps, own),
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
    if config.normalize_over_batch and not config.kl_in_reward:  # otherwise it follows the divergence
        scales = {
            origin: math.sqrt(math.fsum(value**2 for value in values) / max(1, len(values))) or 1.0
            for origin, values in compared.items()
        }
        batch.sequences = [replace(s, advantage=s.advantage / scales[origins[s.group]]) for s in batch.sequences]
    if refused := sum(batch.left_out_members[LeftOut(kind)] for kind in _CHANGED):
        logger.warning("%d members are left out for their tokens. %s", refused, _HOW_TO_KEEP)
    if shaped := batch.left_out_members[LeftOut.SHAPED_SAMPLING]:
        logger.warning("%d members are left out for how they were sampled. %s", shaped, _HOW_TO_SAMPLE)
    return batch


_STEPS_UNUSED = "step_rewards of trajectories are not trained on: set step_advantages=True or loss=Ppo() in TrainConfig"
_HOW_TO_KEEP = (
    "Send each reply back as it came, put a context that the agent rewrites into additional_histories, or set "
    'on_token_mismatch="branch" in TrainConfig to train them as several sequences (docs/tokens.md).'
)
_HOW_TO_SAMPLE = (
    "Leave top_p, penalties, response_format and a forced tool_choice out of requests whose turns are to be trained: "
    "such a turn is of another distribution than the policy's (docs/endpoint.md)."
)


def _why_unfit(trajectory: Trajectory, found: list[TokenSequence], space: TokenSpace) -> LeftOut | None:
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
    return LeftOut.SHAPED_SAMPLING if any(_field(each, "shaped_by") for each in trajectory.choices()) else None


def _why_refused(trajectory: Trajectory, kinds: Counter[MismatchKind], config: TrainConfig) -> LeftOut | None:
    cut = any(choice.finish_reason == "length" for choice in trajectory.choices())
    if config.mask_truncated and (cut or trajectory.status == "truncated"):
        return LeftOut.RAN_OUT
    if config.on_token_mismatch == "branch":
        return None
    return next((LeftOut(kind) for kind in _CHANGED if kinds[kind]), None)


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
