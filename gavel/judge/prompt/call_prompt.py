"""The messages of one call to a judge model, truncated to the tokens that its context allows."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain

from gavel.judge.prompt.canonical_group import CanonicalGroup, Conversation, Member, has_reference
from gavel.judge.prompt.fenced_transcript import PromptMarkers, Transcripts
from gavel.judge.prompt.provider_formats import images_of
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.prompt.truncate import TextTruncator, count_tokens, max_members_shown, truncate_group
from gavel.judge.rubric import Rubric
from gavel.llm.types import IMAGE_TOKENS, Message, count_images, text_of
from gavel.prompts import render

_EMPTY_MEMBER = Member((Conversation(()),), ())
"""A member without content."""
_CHARACTERS_PER_TOKEN = 8
"""More than texts have on average. Texts that are shorter than this for each token of room may fit."""
_TOKENS_PER_MESSAGE = 8
"""Upper bound of the tokens that a chat template adds to a message."""


Request = Callable[[Sequence[str], Sequence[int]], str]
"""What is asked about the members shown, by their labels and by the numbers of their turns."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages of a call, and the characters with which the last one begins as those of other calls do."""

    messages: list[Message]
    shortened: bool
    """Whether texts were truncated."""
    same_in_group: int
    """Characters that every call on the group begins with."""
    same_in_orders: int
    """Characters that every call with these members begins with."""
    turns: Sequence[int] = ()
    """Turns of each member shown, in order; empty where they have no numbers."""


class GroupPrompts:
    """The prompts of a group's calls; they are truncated once for all orders of the same members."""

    def __init__(
        self,
        group: CanonicalGroup,
        markers: PromptMarkers,
        rubric: Rubric,
        request: Request,
        *,
        highest: int = 1,
        turns: bool = False,
    ) -> None:
        """`highest`: the best score. `turns`: the agent's turns are numbered."""
        self.markers = markers
        self._rubric = rubric
        self._request = request
        self._highest = highest
        self._turns = turns
        self._whole = Transcripts(group, markers, turns=turns)
        self._truncated: tuple[tuple[tuple[int, ...], int], Transcripts] | None = None
        self._truncator = TextTruncator()

    def fit(self, order: Sequence[int], max_tokens: int) -> Prompt:
        """The prompt that shows the members in `order`, in at most `max_tokens` tokens.

        Raises `ContextTooSmallError`.
        """
        whole = None if self._exceeds(order, max_tokens) else self.whole(order)
        if whole and count_message_tokens(whole.messages, max_tokens) <= max_tokens:
            return whole
        key = tuple(sorted(order)), max_tokens
        if self._truncated is None or self._truncated[0] != key:
            self._truncated = key, self._truncate(*key)
        prompt = self._prompt(self._truncated[1], order, shortened=True)
        if count_message_tokens(prompt.messages, max_tokens) > max_tokens:  # by a few tokens, in this order
            prompt = self._prompt(self._truncate(order, max_tokens), order, shortened=True)
        return prompt

    def whole(self, order: Sequence[int]) -> Prompt:
        """The prompt that shows the members in `order`, however long."""
        return self._prompt(self._whole, order)

    def _exceeds(self, order: Sequence[int], max_tokens: int) -> bool:
        """Whether the texts are certainly too long, as far as can be told without making the prompt."""
        texts = _shown(self._whole.group, order).texts
        if sum(map(len, texts)) < _CHARACTERS_PER_TOKEN * max_tokens:
            return False
        counts = accumulate(count_tokens(text, stop_at=2 * max_tokens) for text in dict.fromkeys(texts))
        return any(counted > 2 * max_tokens for counted in counts)

    def _truncate(self, order: Sequence[int], max_tokens: int) -> Transcripts:
        def size(of: CanonicalGroup) -> int:
            return count_message_tokens(self._prompt(Transcripts(of, self.markers, turns=self._turns), order).messages)

        shown = _shown(self._whole.group, order)
        fitting = truncate_group(shown, max_tokens, size, self._truncator)
        return Transcripts(fitting, self.markers, turns=self._turns)

    def _prompt(self, transcripts: Transcripts, order: Sequence[int], *, shortened: bool = False) -> Prompt:
        parts = transcripts.parts(order)
        text = parts.joined(order)
        images = _image_parts(transcripts.group, order, self.markers)
        turns = [transcripts.group.turns(member) for member in order] if self._turns else []
        asked = f"{text}\n\n{self._request([self.markers.labels[member] for member in order], turns)}".strip()
        system = _instructions(self._rubric, bool(images), has_reference(transcripts.group), self._highest)
        messages: list[Message] = [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "text", "text": asked}, *images] if images else asked},
        ]
        of_group = len(parts.of_group)
        of_orders = of_group + len(parts.of_members) + bool(parts.of_group and parts.of_members)
        return Prompt(messages, shortened, of_group, of_orders, turns)


def _shown(group: CanonicalGroup, order: Collection[int]) -> CanonicalGroup:
    """The group with the text of these members only."""
    if len(order) == len(group.members):
        return group
    return replace(group, members=tuple(m if n in order else _EMPTY_MEMBER for n, m in enumerate(group.members)))


@lru_cache
def _instructions(rubric: Rubric, images: bool, reference: bool, highest: int) -> str:
    values = {"rubric": sanitize(rubric.words), "images": images, "reference": reference, "highest": highest}
    return render("judge/system.j2", **values)


def _image_parts(group: CanonicalGroup, order: Sequence[int], markers: PromptMarkers) -> list[Message]:
    """The different images of the members in `order`, each behind a line with its number."""
    if not group.images:
        return []
    conversations = (conversation for member in order for conversation in group.members[member].conversations)
    shown = set(images_of(chain(group.shared, *(conversation.events for conversation in conversations))))
    parts: list[Message] = []
    for image, number in group.images.items():
        if image in shown:
            parts.append({"type": "text", "text": f"{markers.fence}image {number}"})
            parts.append({"type": "image_url", "image_url": {"url": image.url}})
    return parts


def max_members_per_prompt(group: CanonicalGroup, rubric: Rubric, request: Request, max_tokens: int) -> int:
    """Number of members that a prompt of `max_tokens` tokens can show at a readable length, at least 2."""
    empty = GroupPrompts(CanonicalGroup((_EMPTY_MEMBER,)), PromptMarkers("code", ("LABEL",)), rubric, request)
    return max_members_shown(group, max_tokens - count_message_tokens(empty.whole((0,)).messages))


def count_message_tokens(messages: Sequence[Message], max_tokens: int = 0) -> int:
    """Tokens of the messages; if even their bytes are within `max_tokens`, the bytes, which is faster to count.

    An image counts as `IMAGE_TOKENS`.
    """
    texts = [text_of(message) for message in messages]
    framing = _TOKENS_PER_MESSAGE * len(texts) + IMAGE_TOKENS * count_images(messages)
    bound = framing + sum(len(text.encode()) for text in texts)
    return bound if bound <= max_tokens else framing + sum(map(count_tokens, texts))
