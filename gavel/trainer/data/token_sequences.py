"""Trajectory -> the exact token sequences that were sampled.

    turns (P1, S1), (P1+S1+tool result, S2)   ->   [P1 S1 tool-result S2], with S1 and S2 trained

Nothing is rendered or tokenized here. The sampled turns form a forest: a turn's parent is the longest one whose prompt
and sampled ids its own prompt begins with; without one (a rewritten history, another conversation) it is a root. Each
path from a root to a leaf is a sequence; a turn on several paths is trained in the first and context in the others. So
every trained token occurs once, in exactly the context in which it was sampled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError
from gavel.scenarios.trajectory import History, Trajectory

COMPACT = {"compact_logprobs": True}
"""The field of a request by which Gavel's endpoint gives log-probs as a plain list, `token_logprobs`: OpenAI's client
makes an object of each token else, which takes longer than sampling it from a small policy."""
_STREAMED = ("token_ids", "token_logprobs")


class TokenError(GavelError):
    """A sampled turn does not carry the tokens that training needs."""


@dataclass(slots=True)
class TokenSequence:
    """A conversation as tokens; all lists have one entry per token."""

    token_ids: list[int] = field(default_factory=list[int])
    sampled: list[bool] = field(default_factory=list[bool])
    """True where the policy chose the token: these are trained."""
    logprobs: list[float] = field(default_factory=list[float])
    """The sampler's, in nats; 0 where not sampled."""
    temperatures: list[float] = field(default_factory=list[float])
    """Sampling temperature of the token; 1 where not sampled."""
    turn_ends: dict[int, int] = field(default_factory=dict[int, int])
    """Index of the last token of each turn trained here, by the turn's number in `trajectory.choices()`."""

    @property
    def trained_tokens(self) -> int:
        return sum(self.sampled)

    def extend(self, ids: list[int], *, logprobs: list[float] | None = None, temperature: float = 1.0) -> None:
        """Appends sampled tokens with their log-probs, or context without `logprobs`."""
        self.token_ids += ids
        self.sampled += [logprobs is not None] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        self.temperatures += [temperature] * len(ids)


@dataclass(frozen=True, slots=True)
class Turn:
    """The sampling data of a `Choice`."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    temperature: float
    cut: bool = field(default=False, compare=False)
    """Whether it ended at its token limit."""
    continues: bool = field(default=False, compare=False)
    """Whether the endpoint sampled the assistant message before it, and found it unchanged in the prompt."""
    sample_id: str | None = None
    """What tells it from an equal turn, which was sampled independently; None: its server does not say."""
    number: int = field(default=0, compare=False)
    """Its index in `trajectory.choices()`; a repeated turn is the same turn."""

    def __len__(self) -> int:
        """Tokens of the prompt and the turn."""
        return len(self.prompt_ids) + len(self.token_ids)

    def follows(self, earlier: "Turn") -> bool:
        """Whether its prompt begins with exactly the tokens of `earlier`."""
        said = len(earlier.prompt_ids)
        return (
            self.prompt_ids[said : len(earlier)] == earlier.token_ids and self.prompt_ids[:said] == earlier.prompt_ids
        )


def turn_of(choice: Choice, number: int = 0) -> Turn:
    """Raises `TokenError` when the choice has no token ids, prompt ids or log-probs, or they do not fit.

    OpenAI's client joins what the chunks of a stream add to the message, so a streamed choice has its ids there.
    """
    extra = (choice.model_extra or {}) | {
        name: value for name, value in (choice.message.model_extra or {}).items() if name in _STREAMED
    }
    prompt_ids, token_ids = extra.get("prompt_token_ids"), extra.get("token_ids")
    logprobs: list[float] | None = extra.get("token_logprobs")
    if logprobs is None and choice.logprobs is not None and choice.logprobs.content is not None:
        logprobs = [entry.logprob for entry in choice.logprobs.content]
    if prompt_ids is None or token_ids is None or logprobs is None:
        raise TokenError(
            "a sampled turn carries no token ids or log-probs, so it cannot be trained exactly",
            "Sample it through model.openai_client(), and append the reply's choice itself to the trajectory.",
        )
    if len(logprobs) != len(token_ids):
        raise TokenError(f"a sampled turn has {len(token_ids)} token ids but {len(logprobs)} log-probs")
    return Turn(
        prompt_ids,
        token_ids,
        logprobs,
        extra.get("temperature") or 1.0,
        cut=choice.finish_reason == "length",
        continues=extra.get("continues_sampled") is True,
        sample_id=extra.get("sample_id"),
        number=number,
    )


def turns_of(history: History, first: int = 0) -> list[Turn]:
    """The sampled turns of one conversation, numbered from `first`. Raises `TokenError` as `turn_of` does."""
    choices = (item for item in history.messages_and_choices if isinstance(item, Choice))
    return [turn_of(choice, number) for number, choice in enumerate(choices, first)]


def sequences(trajectory: Trajectory) -> list[TokenSequence]:
    """The token sequences of all histories; each sampled turn is trained in exactly one of them.

    For turns (prompt P1, sampled S1), (P1+S1+tool result, S2), (P1+S1+question, S3), (another prompt P4, S4) these
    are [P1 S1 tool-result S2], [P1 S1 question S3] and [P4 S4], with S1 marked as sampled in the first alone.
    Raises `TokenError` as `turn_of` does.
    """
    found: list[list[Turn]] = []
    for history in trajectory.histories():
        found.append(turns_of(history, first=sum(map(len, found))))
    return join_turns(found)


def join_turns(histories: Iterable[Sequence[Turn]]) -> list[TokenSequence]:
    """The token sequences of the turns of a trajectory's histories, each turn trained in exactly one of them."""
    turns = [turn for turn in _distinct(histories) if turn.token_ids]
    longest_first = sorted(range(len(turns)), key=lambda at: -len(turns[at]))
    parents = [next((at for at in longest_first if turn.follows(turns[at])), None) for turn in turns]
    trained: set[int] = set()
    found: list[TokenSequence] = []
    for leaf in sorted(set(range(len(turns))) - set(parents)):
        branch: list[int] = []
        at: int | None = leaf
        while at is not None:
            branch.append(at)
            at = parents[at]
        sequence = TokenSequence()
        for number in reversed(branch):
            turn = turns[number]
            sequence.extend(turn.prompt_ids[len(sequence.token_ids) :])
            if number in trained:
                sequence.extend(turn.token_ids)
            else:
                sequence.extend(turn.token_ids, logprobs=turn.logprobs, temperature=turn.temperature)
                sequence.turn_ends[turn.number] = len(sequence.token_ids) - 1
        trained.update(branch)
        found.append(sequence)
    return found


def _distinct(histories: Iterable[Sequence[Turn]]) -> list[Turn]:
    """The samples that all histories show: one that a history repeats counts once, and two that are equal count twice.

    The expected gradient is a sum over samples, so an equal one is no repetition. `sample_id` tells which is which.
    Without it, equal turns within a history are two samples, and equal turns of two histories are one.
    """
    found: list[Turn] = []
    known: set[str] = set()
    for turns in histories:
        elsewhere = list(found)
        for turn in turns:
            if turn.sample_id is not None:
                if turn.sample_id not in known:
                    known.add(turn.sample_id)
                    found.append(turn)
            elif turn in elsewhere:
                elsewhere.remove(turn)
            else:
                found.append(turn)
    return found
