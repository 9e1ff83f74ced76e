"""Trajectory -> the exact token sequences that were sampled.

Nothing is rendered or tokenised here. A turn's prompt ids and sampled ids are taken as the engine
recorded them: a turn whose prompt extends the sequence so far continues it, any other prompt (a
rewritten history, another conversation) begins a sequence of its own. So every trained token stands
in the very context that it was sampled in.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from openai.types.chat.chat_completion import Choice

from scenarios.errors import GavelError
from scenarios.trajectory import Trajectory


class TokenError(GavelError):
    """A sampled turn does not carry the tokens that training needs."""


@dataclass(slots=True)
class TokenSequence:
    """A conversation as tokens; all lists have one entry per token."""

    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    """True where the policy chose the token: these are trained."""
    logprobs: list[float] = field(default_factory=list)
    """The sampler's, in nats; 0 where not sampled."""
    temperatures: list[float] = field(default_factory=list)
    """At which the token was sampled; 1 where not sampled."""
    turn_ends: dict[int, int] = field(default_factory=dict)
    """The place of the last token of each turn that is trained here, by the turn's number in `trajectory.choices()`."""

    @property
    def trained_tokens(self) -> int:
        return sum(self.sampled)

    def _add(self, ids: list[int], *, logprobs: list[float] | None = None, temperature: float = 1.0) -> None:
        self.token_ids += ids
        self.sampled += [logprobs is not None] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        self.temperatures += [temperature] * len(ids)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a `Choice` carries of its sampling."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    temperature: float
    number: int = field(default=0, compare=False)
    """Its place in `trajectory.choices()`; a turn that is repeated there is the same turn."""


def turn_of(choice: Choice, number: int = 0) -> Turn:
    """Raises `TokenError` when the choice has no token ids, prompt ids or log-probs, or they do not fit."""
    extra = choice.model_extra or {}
    prompt_ids, token_ids = extra.get("prompt_token_ids"), extra.get("token_ids")
    if prompt_ids is None or token_ids is None or choice.logprobs is None or choice.logprobs.content is None:
        raise TokenError(
            "a sampled turn carries no token ids or log-probs, so it cannot be trained exactly",
            "Sample it through model.openai_client(), and append the reply's choice itself to the trajectory.",
        )
    logprobs = [entry.logprob for entry in choice.logprobs.content]
    if len(logprobs) != len(token_ids):
        raise TokenError(f"a sampled turn has {len(token_ids)} token ids but {len(logprobs)} log-probs")
    return Turn(prompt_ids, token_ids, logprobs, extra.get("temperature") or 1.0, number)


def sequences(trajectory: Trajectory) -> list[TokenSequence]:
    """The token sequences of all histories; each sampled turn stands in exactly one of them.

    A turn that a further history took over from an earlier one is not trained twice.

    For turns (prompt P1, sampled S1), (P1+S1+tool result, S2), (another prompt P3, S3) these are
    [P1 S1 tool-result S2] and [P3 S3], with S1, S2 and S3 marked as sampled.
    """
    found: list[TokenSequence] = []
    earlier: list[Turn] = []
    numbers = itertools.count()
    for history in trajectory.histories():
        choices = (item for item in history.messages_and_choices if isinstance(item, Choice))
        turns = [turn_of(choice, next(numbers)) for choice in choices]
        found += _stitched(turn for turn in turns if turn not in earlier)
        earlier += turns
    return found


def _stitched(turns: Iterable[Turn]) -> list[TokenSequence]:
    open_sequences: list[TokenSequence] = []
    for turn in turns:
        for current in reversed(open_sequences):
            length = len(current.token_ids)
            if turn.prompt_ids[:length] == current.token_ids:
                break
        else:
            current, length = TokenSequence(), 0
            open_sequences.append(current)
        current._add(turn.prompt_ids[length:])
        current._add(turn.token_ids, logprobs=turn.logprobs, temperature=turn.temperature)
        if turn.token_ids:
            current.turn_ends[turn.number] = len(current.token_ids) - 1
    return open_sequences
