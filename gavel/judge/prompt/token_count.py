"""Counts and truncates text in tokens of `cl100k_base`, the tokenizer that ships with LiteLLM.

Other models count differently; a caller that must stay within a context window leaves a margin. Long text is encoded
in pieces, so the time is linear in its length.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gavel.llm.providers import load_litellm

_MAX_TOKENS_PER_CHARACTER = 4
"""A character has at most four bytes, and a token at least one."""
_PIECE = 4096
"""Characters encoded at once: some tokenizers take quadratic time on a long word."""


def count_tokens(text: str) -> int:
    """At least the tokenizer's count for the whole text, and at most a few more per `_PIECE`."""
    return sum(len(tokens) for tokens in _encode_pieces(text))


@dataclass(slots=True)
class TextTruncator:
    """Truncates the same texts to several lengths, and encodes each text once."""

    _encodings: dict[str, "array[int]"] = field(default_factory=dict[str, "array[int]"])

    def truncate(self, text: str, limit: int) -> str:
        """A text of more than `limit` tokens without its middle: `limit` tokens and a mark that counts the rest."""
        if _MAX_TOKENS_PER_CHARACTER * len(text) <= limit:
            return text
        if text not in self._encodings:
            self._encodings[text] = array("I", chain.from_iterable(_encode_pieces(text)))
        tokens = self._encodings[text]
        omitted = len(tokens) - limit
        if omitted <= 0:
            return text
        head, tail = _decode(tokens[: limit - limit // 2]), _decode(tokens[len(tokens) - limit // 2 :])
        return f"{head} {omission_mark(omitted)} {tail}"


def omission_mark(tokens: int) -> str:
    return f"[… {tokens} tokens left out …]"


def _encode_pieces(text: str) -> Iterator[list[int]]:
    encoding: Any = load_litellm().encoding
    for start in range(0, len(text), _PIECE):
        yield encoding.encode(text[start : start + _PIECE], disallowed_special=())


def _decode(tokens: Sequence[int]) -> str:
    """Drops a character of which only some bytes are there."""
    encoding: Any = load_litellm().encoding
    return encoding.decode(list(tokens), errors="ignore")
