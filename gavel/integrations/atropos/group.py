"""A group as Atropos' environments and trainers exchange it: token ids and training masks.

    tokens              [[7, 8, 20, 21, 9, 22], …]               a whole conversation for each member
    masks               [[-100, -100, 20, 21, -100, 22], …]      -100 where the policy did not choose the token
    scores              [1.0, …]
    inference_logprobs  [[1.0, 1.0, -0.3, -0.1, 1.0, -0.7], …]   the sampler's; 1.0 where the policy did not choose

A member is one token sequence, so it is a trajectory whose turns each continue the turn before: every range of trained
tokens becomes a `Choice` with its exact prompt, and back again. Nothing is rendered or tokenized here.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Self, TypeVar

from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import MessageOrChoice, Trajectory
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, turn_of
from gavel.trainer.data.training_batch import TOKEN_ADVANTAGES

UNTRAINED = -100
"""Value in `masks` of a token that the policy did not sample."""
MASKS = "An entry of `masks` is the token's id where the policy chose the token, and -100 elsewhere."
NO_LOGPROB = 1.0
"""Value in `inference_logprobs` of a token that the policy did not sample; no log-prob is above 0."""
NO_ADVANTAGE = "set_advantage_to_zero"
"""Override of a member that counts in its group and is not trained."""
_ROUNDING = 1e-3
"""Max nats by which rounding may push a log-prob above 0."""

_OPTIONAL = (
    *("advantages", "ref_logprobs", "messages", "inference_logprobs", "overrides", "images"),
    *("distill_token_ids", "distill_logprobs"),
)

_PER_TOKEN = ("masks", "advantages", "ref_logprobs", "inference_logprobs")

T = TypeVar("T")
Decode = Callable[[Sequence[int]], str]


class AtroposGroup(BaseModel):
    """The body of `POST /scored_data`; lengths are checked, and fields of later versions are kept.

    Numbers of tokens that are not trained may be NaN, also in its JSON.
    """

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    tokens: list[list[int]] = Field(min_length=1)
    """Token ids of each member. `[G, T]`"""
    masks: list[list[int]]
    """The token id, or -100 for a token that the policy did not sample. `[G, T]`"""
    scores: list[float]
    """`[G]`"""
    advantages: list[list[float]] | None = None
    """Advantages per token, overriding those of the scores. `[G, T]`"""
    ref_logprobs: list[list[float]] | None = None
    """Log-probs of a reference policy. Gavel's learner has its own reference. `[G, T]`"""
    messages: list[list[dict[str, Any]]] | None = None
    """The conversations as chat messages."""
    generation_params: dict[str, Any] | None = None
    inference_logprobs: list[list[float]] | None = None
    """The sampler's log-probs, in nats. `[G, T]`"""
    overrides: list[dict[str, Any] | None] | None = None
    """Settings per member, such as `set_advantage_to_zero`."""
    group_overrides: dict[str, Any] | None = None
    images: Any = None
    env_id: int | None = None
    """Number of the sending environment."""
    distill_token_ids: list[list[list[int]]] | None = None
    distill_logprobs: list[list[list[float]]] | None = None

    @field_validator(*_OPTIONAL, mode="before")
    @classmethod
    def _absent(cls, value: object) -> object:
        """Converts the empty list that an environment sends for an absent field to None."""
        return None if value == [] else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Rejects shapes that do not fit, and values of trained tokens that no arithmetic can use, which would spoil a
        whole step."""
        members = len(self.tokens)
        for name in (*_PER_TOKEN, "scores", "messages", "overrides"):
            values: Sequence[object] | None = getattr(self, name)
            if values is not None and len(values) != members:
                raise ValueError(f"{name} has {len(values)} members, and tokens has {members}")
        if not all(map(math.isfinite, self.scores)):
            raise ValueError("a score is not a finite number")
        for number, tokens in enumerate(self.tokens):
            if not tokens:
                raise ValueError(f"tokens[{number}] is empty")
            if min(tokens) < 0:
                raise ValueError(f"tokens[{number}] holds {min(tokens)}, which is no token id")
            for name in _PER_TOKEN:
                rows: Sequence[Sequence[float]] | None = getattr(self, name)
                if rows is None:
                    continue
                if len(rows[number]) != len(tokens):
                    told = f"{name}[{number}] has {len(rows[number])} entries, and tokens[{number}] has {len(tokens)}"
                    raise ValueError(told)
                if name in ("advantages", "inference_logprobs"):
                    self._check_trained(name, number, rows[number])
        if not all({"role", "content"} <= message.keys() for each in self.messages or () for message in each):
            raise ValueError("a message lacks role or content")
        return self

    def _check_trained(self, name: str, number: int, values: Sequence[float]) -> None:
        trained = [value for value, kept in zip(values, self.masks[number], strict=True) if kept != UNTRAINED]
        if not all(map(math.isfinite, trained)):
            raise ValueError(f"{name}[{number}] of a trained token is not a finite number")
        if name == "inference_logprobs" and max(trained, default=0.0) > _ROUNDING:
            raise ValueError(
                f"inference_logprobs[{number}] of a trained token is {max(trained):g}, above 0: no log-prob; "
                f"{NO_LOGPROB} stands only where masks is {UNTRAINED}"
            )

    def other_targets(self) -> str | None:
        """The first entry of `masks` that is neither -100 nor its token, as in 0/1 masks; None without any."""
        for number, (tokens, mask) in enumerate(zip(self.tokens, self.masks, strict=True)):
            for place, (token, kept) in enumerate(zip(tokens, mask, strict=True)):
                if kept not in (token, UNTRAINED):
                    return f"masks[{number}][{place}] is {kept}, which is neither {UNTRAINED} nor the token, {token}"
        return None

    def __len__(self) -> int:
        """The number of members."""
        return len(self.tokens)

    def temperature(self, member: int) -> float:
        """A member's sampling temperature: from its overrides, else the generation parameters, else the group's
        overrides; default 1."""
        settings = (self._override(member), self.generation_params or {}, self.group_overrides or {})
        given = [value for each in settings if isinstance(value := each.get("temperature"), int | float)]
        return next((float(value) for value in given if math.isfinite(value) and value > 0), 1.0)

    def _override(self, member: int) -> dict[str, Any]:
        return (None if self.overrides is None else self.overrides[member]) or {}

    def trajectories(self, decode: Decode | None, metadata: Mapping[str, Any] | None = None) -> TrajectoryGroup:
        """The group as trajectories, with the scores as `reward`.

        `decode` converts token ids to text, for members whose messages do not cover their trained turns; without it
        such a member has its messages' text alone. A `Choice` has `token_logprobs` if the group has the sampler's, and
        `token_advantages` if it has advantages. Raises `ValueError` for a member with neither messages nor `decode`.
        """
        members = [self._trajectory(number, decode) for number in range(len(self))]
        return TrajectoryGroup(members, metadata=dict(metadata or {}))

    def _trajectory(self, number: int, decode: Decode | None) -> Trajectory:
        spans = list(trained_spans(self.masks[number]))
        given: list[Message] = list((self.messages or {number: []})[number])
        assistants = [at for at, message in enumerate(given) if message["role"] == "assistant"]
        items: list[MessageOrChoice] = list(given)
        if given and len(assistants) >= len(spans):
            # The last ones are sampled: earlier ones may be examples.
            for at, span in zip(assistants[len(assistants) - len(spans) :], spans, strict=True):
                items[at] = self._choice(number, span, given[at])
        elif decode is not None:
            items, shown, tokens = [], 0, self.tokens[number]
            for start, end in [*spans, (len(tokens), len(tokens))]:
                if start > shown:
                    items.append({"role": "user", "content": decode(tokens[shown:start])})
                if end > start:
                    items.append(self._choice(number, (start, end), {"content": decode(tokens[start:end])}))
                shown = end
        elif given:
            items[-1] = {**given[-1], "role": "assistant"}
        else:
            raise ValueError(f"member {number} has no messages")
        trajectory = Trajectory(messages_and_choices=items, reward=self.scores[number])
        trajectory.metrics = {"tokens": len(self.tokens[number]), "turns": len(spans)}
        return trajectory

    def _choice(self, number: int, span: tuple[int, int], message: Message) -> Choice:
        """The message, with its trained tokens from `start` to `end`."""
        tokens, (start, end) = self.tokens[number], span
        fields: Message = {
            "index": 0,
            "finish_reason": "stop",
            "prompt_token_ids": tokens[:start],
            "token_ids": tokens[start:end],
            "temperature": self.temperature(number),
        }
        if self.inference_logprobs is not None:
            fields["token_logprobs"] = self.inference_logprobs[number][start:end]
        if self._override(number).get(NO_ADVANTAGE):
            fields[TOKEN_ADVANTAGES] = [0.0] * (end - start)
        elif self.advantages is not None:
            fields[TOKEN_ADVANTAGES] = self.advantages[number][start:end]
        try:
            return Choice.model_validate({**fields, "message": {**message, "role": "assistant"}})
        except ValidationError:  # content parts, or calls of another form: the text is kept
            text = json.dumps({name: value for name, value in message.items() if name != "role"}, ensure_ascii=False)
            return Choice.model_validate({**fields, "message": {"role": "assistant", "content": text}})


def first_problem(error: ValidationError) -> str:
    """The first validation problem and its position, without its value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")


def trained_spans(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ranges `[start, end)` of trained tokens."""
    at = 0
    for is_trained, stretch in groupby(value != UNTRAINED for value in mask):
        length = len(list(stretch))
        if is_trained:
            yield at, at + length
        at += length


def one_sequence(trajectory: Trajectory) -> TokenSequence | str:
    """The trajectory as the single token sequence of Atropos' formats, or the reason why it is none."""
    sequence = TokenSequence()
    for choice in trajectory.choices():
        try:
            turn = turn_of(choice)
        except TokenError as error:
            return error.message
        known = len(sequence.token_ids)
        if turn.prompt_ids[:known] != sequence.token_ids:
            return "its turns are not one token sequence"
        sequence.extend(turn.prompt_ids[known:])
        sequence.extend(turn.token_ids, logprobs=turn.logprobs)
    return sequence if sequence.token_ids else "nothing was sampled in it"


def atropos_group(group: TrajectoryGroup, *, temperature: float | None = None) -> tuple[AtroposGroup | None, list[str]]:
    """A group's scored members that are one token sequence each, if there are any, and the reason for each other one.

    `temperature`: the sampler's, if known for the whole group; else the first turn's.
    """
    members: list[tuple[Trajectory, TokenSequence]] = []
    left_out: list[str] = []
    for trajectory in group:
        sequence = one_sequence(trajectory)
        if trajectory.reward is None or not math.isfinite(trajectory.reward):
            left_out.append("it has no score")
        elif isinstance(sequence, str):
            left_out.append(sequence)
        else:
            members.append((trajectory, sequence))
    if not members:
        return None, left_out
    if temperature is None:
        temperature = (next(members[0][0].choices()).model_extra or {}).get("temperature")
    made = AtroposGroup(
        tokens=[each.token_ids for _, each in members],
        masks=[_where_sampled(each, each.token_ids, UNTRAINED) for _, each in members],
        scores=[float(trajectory.reward or 0.0) for trajectory, _ in members],
        inference_logprobs=[_where_sampled(each, each.logprobs, NO_LOGPROB) for _, each in members],
        messages=[[_shown(message) for message in trajectory.messages()] for trajectory, _ in members],
        generation_params=None if temperature is None else {"temperature": temperature},
    )
    return made, left_out


def _where_sampled(sequence: TokenSequence, values: Sequence[T], other: T) -> list[T]:
    """The values of sampled tokens, and `other` for context tokens."""
    return [value if sampled else other for value, sampled in zip(values, sequence.sampled, strict=True)]


def _shown(message: Message) -> dict[str, Any]:
    """The message with `content`, which Atropos requires."""
    return message if message.get("content") is not None else {**message, "content": ""}
