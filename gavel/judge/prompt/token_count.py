"""Counts and truncates text in tokens of `cl100k_base`, the tokenizer that ships with LiteLLM.

Other models count differently; a caller that must stay within a context window leaves a margin. Long text is encoded
in pieces, so the time is linear in its length.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

from gavel.llm.providers import load_litellm

_MAX_TOKENS_PER_CHARACTER = 4
"""A character has at most four bytes, and a token at least one."""
_PIECE = 4096
"""Characters encoded at once: some tokenizers take quadratic time on a long word."""


_COUNTED = 100_000
"""Characters up to which what is left out is counted, not estimated: to count more would take longer than the rest."""
_SAMPLE = 4 * _PIECE
"""Characters from which the tokens of a longer text are estimated."""


def count_tokens(text: str, stop_at: float = inf) -> int:
    """At least the tokenizer's count for the whole text, and at most a few more per `_PIECE`.

    Counts no further than to `stop_at`.
    """
    counted = 0
    for start in range(0, len(text), _PIECE):
        counted += len(_encode(text[start : start + _PIECE]))
        if counted >= stop_at:
            break
    return counted


def estimate_tokens(texts: Iterable[str]) -> tuple[int, bool]:
    """The tokens of the texts, and whether they are an estimate."""
    texts = list(texts)
    total = sum(map(len, texts))
    if total <= _COUNTED:
        return sum(map(count_tokens, texts)), False
    beginning = "\n".join(text[:_SAMPLE] for text in texts)[:_SAMPLE]
    return round(count_tokens(beginning) * total / _SAMPLE), True


@dataclass(slots=True)
class TextTruncator:
    """Truncates the same texts to several lengths; encodes each text once, and of a long one only what is kept."""

    _encodings: dict[str, "_LazyEncoding"] = field(default_factory=dict[str, "_LazyEncoding"])

    def truncate(self, text: str, limit: int) -> str:
        """A text of more than `limit` tokens without its middle: `limit` tokens and a mark that tells how many the rest
        has."""
        if _MAX_TOKENS_PER_CHARACTER * len(text) <= limit:
            return text
        encoding = self._encodings.setdefault(text, _LazyEncoding(text))
        head, pieces_before = encoding.first(limit - limit // 2)
        tail, pieces_after = encoding.last(limit // 2)
        estimated = len(text) > _COUNTED and pieces_before + pieces_after < encoding.pieces
        if estimated:
            tokens = max(limit + 1, round(encoding.count(_SAMPLE // _PIECE) * len(text) / _SAMPLE))
        else:
            tokens = encoding.count(encoding.pieces)
        if tokens <= limit:
            return text
        return f"{_decode(head)} {omission_mark(tokens - limit, estimated)} {_decode(tail)}"


class _LazyEncoding:
    """The tokens of a text, encoded in pieces when they are needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._encoded: list[array[int] | None] = [None] * ceil(len(text) / _PIECE)

    @property
    def pieces(self) -> int:
        return len(self._encoded)

    def first(self, count: int) -> "tuple[array[int], int]":
        """The first `count` tokens, and the number of pieces that they take."""
        tokens, pieces = array("I"), 0
        while len(tokens) < count and pieces < self.pieces:
            tokens += self._piece(pieces)
            pieces += 1
        return tokens[:count], pieces

    def last(self, count: int) -> "tuple[array[int], int]":
        """The last `count` tokens, and the number of pieces that they take."""
        tokens, pieces = array("I"), 0
        while len(tokens) < count and pieces < self.pieces:
            pieces += 1
            tokens = self._piece(self.pieces - pieces) + tokens
        return tokens[max(0, len(tokens) - count) :], pieces

    def count(self, pieces: int) -> int:
        """The number of tokens in the first pieces."""
        return sum(len(self._piece(number)) for number in range(pieces))

    def _piece(self, number: int) -> "array[int]":
        if (piece := self._encoded[number]) is None:
            piece = self._encoded[number] = array("I", _encode(self._text[number * _PIECE : (number + 1) * _PIECE]))
        return piece


def omission_mark(tokens: int, estimated: bool = False) -> str:
    return f"[… {'about ' if estimated else ''}{tokens} tokens left out …]"


def _encode(piece: str) -> list[int]:
    encoding: Any = load_litellm().encoding
    return encoding.encode(piece, disallowed_special=())


def _decode(tokens: Sequence[int]) -> str:
    """Drops a character of which only some bytes are there."""
    encoding: Any = load_litellm().encoding
    return encoding.decode(list(tokens), errors="ignore")
