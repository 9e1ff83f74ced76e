"""The messages of one call to a judge model, in as many tokens as it has room for."""

from collections.abc import Sequence
from dataclasses import replace

from gavel.judge.prompt.canonical import CanonicalGroup, Conversation, Member
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.prompt.token_count import count_tokens
from gavel.judge.prompt.transcript import PromptMarkers, render_transcripts
from gavel.judge.prompt.truncate import max_members_shown, truncate_group
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.prompts import render

_NOBODY = Member((Conversation(()),), ())
"""A member without text."""
_FRAME = 8
"""Tokens that a chat template puts around a message, at most."""


def template_names(rubric: Rubric) -> tuple[str, str]:
    """Of the system's message, and of the user's."""
    return "judge/system.j2", "judge/criteria.j2" if rubric.criteria else "judge/group.j2"


def build_messages(group: CanonicalGroup, row: Sequence[int], marks: PromptMarkers, rubric: Rubric) -> list[Message]:
    """What is told and shown of the members in `row`."""
    labels = [marks.labels[member] for member in row]
    values: dict[str, object] = {"transcripts": render_transcripts(group, row, marks), "labels": labels}
    if rubric.criteria:
        values["criteria"] = [(letter, sanitize(criterion.name)) for letter, criterion in rubric.lettered]
    system, user = template_names(rubric)
    return [
        {"role": "system", "content": render(system, rubric=sanitize(rubric.words))},
        {"role": "user", "content": render(user, **values)},
    ]


def fit_messages(
    group: CanonicalGroup, row: Sequence[int], marks: PromptMarkers, rubric: Rubric, room: int
) -> tuple[list[Message], bool]:
    """The messages in at most `room` tokens, and whether texts had to be shortened for it.

    Raises `ContextTooSmallError`.
    """
    whole = build_messages(group, row, marks, rubric)
    if count_message_tokens(whole, room) <= room:
        return whole, False
    shown = replace(group, members=tuple(m if n in row else _NOBODY for n, m in enumerate(group.members)))
    fitting = truncate_group(shown, room, lambda of: count_message_tokens(build_messages(of, row, marks, rubric)))
    return build_messages(fitting, row, marks, rubric), True


def max_members_per_prompt(group: CanonicalGroup, rubric: Rubric, room: int) -> int:
    """How many members a prompt of `room` tokens can show in a readable length, at least 2."""
    marks = PromptMarkers("code", ("LABEL",))
    return max_members_shown(
        group, room - count_message_tokens(build_messages(CanonicalGroup((_NOBODY,)), (0,), marks, rubric))
    )


def count_message_tokens(of: Sequence[Message], enough: int = 0) -> int:
    """Tokens of the messages; a bound of them, their bytes, where that is no more than `enough`."""
    texts = [message["content"] for message in of]
    bound = sum(len(text.encode()) for text in texts) + _FRAME * len(texts)
    return bound if bound <= enough else sum(map(count_tokens, texts)) + _FRAME * len(texts)
