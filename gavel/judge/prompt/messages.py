"""The messages of one call to a judge model, truncated to the tokens that its context allows."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from gavel.judge.prompt.canonical import CanonicalGroup, Conversation, Member
from gavel.judge.prompt.events import images_of
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.prompt.token_count import count_tokens
from gavel.judge.prompt.transcript import PromptMarkers, render_transcripts
from gavel.judge.prompt.truncate import max_members_shown, truncate_group
from gavel.judge.rubric import Rubric
from gavel.llm.message_parts import IMAGE_TOKENS, count_images, text_of
from gavel.llm.types import Message
from gavel.prompts import render

_EMPTY_MEMBER = Member((Conversation(()),), ())
"""A member without content."""
_TOKENS_PER_MESSAGE = 8
"""Upper bound of the tokens that a chat template adds to a message."""


def template_names(rubric: Rubric) -> tuple[str, str]:
    """The templates of the system message and of the user message."""
    return "judge/system.j2", "judge/criteria.j2" if rubric.criteria else "judge/group.j2"


def build_messages(
    group: CanonicalGroup, order: Sequence[int], markers: PromptMarkers, rubric: Rubric
) -> list[Message]:
    """The messages that show the members in `order`."""
    labels = [markers.labels[member] for member in order]
    values: dict[str, object] = {"transcripts": render_transcripts(group, order, markers), "labels": labels}
    images = image_parts(group, order, markers)
    if rubric.criteria:
        values["criteria"] = [(letter, sanitize(criterion.name)) for letter, criterion in rubric.lettered]
    system, user = template_names(rubric)
    text = render(user, **values)
    return [
        {"role": "system", "content": render(system, rubric=sanitize(rubric.words), images=bool(images))},
        {"role": "user", "content": [{"type": "text", "text": text}, *images] if images else text},
    ]


def image_parts(group: CanonicalGroup, order: Sequence[int], markers: PromptMarkers) -> list[Message]:
    """The different images of the members in `order`, each behind a line with its number."""
    conversations = (conversation for member in order for conversation in group.members[member].conversations)
    shown = set(images_of(chain(group.shared, *(conversation.events for conversation in conversations))))
    parts: list[Message] = []
    for image, number in group.images.items():
        if image in shown:
            parts.append({"type": "text", "text": f"{markers.fence}image {number}"})
            parts.append({"type": "image_url", "image_url": {"url": image.url}})
    return parts


def fit_messages(
    group: CanonicalGroup, order: Sequence[int], markers: PromptMarkers, rubric: Rubric, max_tokens: int
) -> tuple[list[Message], bool]:
    """The messages in at most `max_tokens` tokens, and whether texts were truncated. Raises `ContextTooSmallError`."""
    complete = build_messages(group, order, markers, rubric)
    if count_message_tokens(complete, max_tokens) <= max_tokens:
        return complete, False

    def size(of: CanonicalGroup) -> int:
        return count_message_tokens(build_messages(of, order, markers, rubric))

    shown = tuple(m if n in order else _EMPTY_MEMBER for n, m in enumerate(group.members))
    truncated = truncate_group(replace(group, members=shown), max_tokens, size)
    return build_messages(truncated, order, markers, rubric), True


def max_members_per_prompt(group: CanonicalGroup, rubric: Rubric, max_tokens: int) -> int:
    """How many members a prompt of `max_tokens` tokens can show at a readable length, at least 2."""
    markers = PromptMarkers("code", ("LABEL",))
    without_members = build_messages(CanonicalGroup((_EMPTY_MEMBER,)), (0,), markers, rubric)
    return max_members_shown(group, max_tokens - count_message_tokens(without_members))


def count_message_tokens(messages: Sequence[Message], max_tokens: int = 0) -> int:
    """Tokens of the messages; if even their bytes are within `max_tokens`, the bytes, which is faster to count.

    An image counts as `IMAGE_TOKENS`.
    """
    texts = [text_of(message) for message in messages]
    framing = _TOKENS_PER_MESSAGE * len(texts) + IMAGE_TOKENS * count_images(messages)
    bound = framing + sum(len(text.encode()) for text in texts)
    return bound if bound <= max_tokens else framing + sum(map(count_tokens, texts))
