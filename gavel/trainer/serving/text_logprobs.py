"""Which of a turn's tokens spell which of its texts, for APIs that show log-probs beside a text.

Texts are looked for in the order in which they were sampled. A character of several tokens has no text of its own in
any of them, so runs of characters beyond ASCII are compared by where they stand, not by which they are.
"""

import re
from collections.abc import Sequence

from gavel.llm.types import Message

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_RUN = "\ufffd"


class TextLogprobs:
    """The tokens of a turn, as a chat completion shows them, given out text by text."""

    def __init__(self) -> None:
        self._tokens: list[Message] = []
        self._begin = 0
        """The first token that may belong to the next text."""
        self._told = 0
        """Tokens that were given, or stand before one that was."""

    def add(self, tokens: Sequence[Message]) -> None:
        self._tokens += tokens

    def of(self, text: str) -> list[Message]:
        """The tokens that spell `text`, without those given for a text before it; none where they spell it nowhere."""
        spelled: list[str] = []
        first: list[int] = []
        last: list[int] = []
        for number in range(self._begin, len(self._tokens)):
            for character in _BEYOND_ASCII.sub(_RUN, self._tokens[number]["token"]):
                if character == _RUN and spelled[-1:] == [_RUN]:
                    last[-1] = number
                    continue
                spelled.append(character)
                first.append(number)
                last.append(number)
        wanted = _BEYOND_ASCII.sub(_RUN, text)
        at = "".join(spelled).find(wanted)
        if not wanted or at < 0:
            return []
        begin, end = max(first[at], self._told), last[at + len(wanted) - 1] + 1
        self._begin, self._told = end - 1, max(end, self._told)  # a token may spell the beginning of the next text too
        return self._tokens[begin:end]
