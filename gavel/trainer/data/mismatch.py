"""Why a turn does not go on from the tokens of the turn before it.

A history says that each of its sampled turns follows the one before. Where the later prompt does not
hold the earlier one's tokens, both are still exact as sequences of their own; but what the history
shows (and the judge has read) may not be what the policy saw. The template may do that, and nobody is
to blame; any other cause means that something between endpoint and agent changed a sampled turn.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.token_sequences import Turn, turns_of

MismatchKind = Literal["template", "retokenisation", "truncation", "client_edit"]
"""template: the messages are as they were sampled, and the chat template shows them otherwise (earlier thinking left
out). retokenisation: the text is the same, in other tokens. truncation: something before is left out, or a turn cut at
its limit is shown otherwise. client_edit: what was said before has been changed."""

Decode = Callable[[Sequence[int]], str]


def mismatches(trajectory: Trajectory, decode: Decode) -> Counter[MismatchKind]:
    """How many turns do not go on from the turn before them in their history, by kind.

    A turn may also be sampled again from the same prompt, and any of such samples may be gone on from. `decode` spells
    token ids, special tokens included. Raises `TokenError` for a turn without token ids.
    """
    pairs: list[tuple[Turn, Turn]] = []
    for history in trajectory.histories():
        turns = turns_of(history)
        for number, turn in enumerate(turns[1:], 1):
            before = turns[number - 1]
            samples = [earlier for earlier in turns[:number] if earlier.prompt_ids == before.prompt_ids]
            goes_on = turn.prompt_ids == before.prompt_ids or any(turn.follows(sample) for sample in samples)
            if not goes_on and (before, turn) not in pairs:
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
    """Whether `prompt` is `context` + `said` and more, but for one stretch of the context that is missing."""
    kept = _agreeing(context, prompt)
    end = prompt.find(said, kept)
    return end >= 0 and context.endswith(prompt[kept:end])


def _agreeing(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of what both begin with."""
    differs = (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differs, min(len(one), len(other)))
