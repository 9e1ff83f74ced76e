"""Why a turn's prompt does not continue the tokens of the turn before it.

Where a later prompt does not contain the earlier turn's tokens, both are still exact as separate sequences, but what
the history shows (and the judge has read) may not be what the policy saw. The chat template alone can cause this,
which is harmless; any other cause means that a sampled turn was changed between endpoint and agent.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.token_sequences import Turn, turns_of

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
