"""Text measured, and cut, in tokens of `cl100k_base`, the tokenizer that LiteLLM brings along.

Other models count otherwise; whoever promises to keep within a window allows for it. Long text is read in pieces, so
the time is linear in its length, whatever it is made of.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gavel.llm.providers import load_litellm

_BYTES = 4
"""Of a character at most, and a token is a byte at least."""
_PIECE = 4096
"""Characters: some tokenizers take quadratic time on a long word."""


def count_tokens(text: str) -> int:
    """Never less than the tokenizer counts in the text as a whole, but for a few per `_PIECE` at most."""
    return sum(len(tokens) for tokens in _encoded(text))


@dataclass(slots=True)
class TextTruncator:
    """Cuts the same texts to several lengths, and reads each of them once."""

    _read: dict[str, "array[int]"] = field(default_factory=dict)

    def cut(self, text: str, most: int) -> str:
        """Head and tail of a text of more than `most` tokens, `most` in all, with a mark that tells what is missing."""
        if _BYTES * len(text) <= most:
            return text
        if text not in self._read:
            self._read[text] = array("I", chain.from_iterable(_encoded(text)))
        tokens = self._read[text]
        left_out = len(tokens) - most
        if left_out <= 0:
            return text
        head, tail = _decoded(tokens[: most - most // 2]), _decoded(tokens[len(tokens) - most // 2 :])
        return f"{head} {omission_mark(left_out)} {tail}"


def omission_mark(tokens: int) -> str:
    return f"[… {tokens} tokens left out …]"


def _encoded(text: str) -> Iterator[list[int]]:
    encoding: Any = load_litellm().encoding
    for start in range(0, len(text), _PIECE):
        yield encoding.encode(text[start : start + _PIECE], disallowed_special=())


def _decoded(tokens: Sequence[int]) -> str:
    """A character that the cut goes through is dropped."""
    encoding: Any = load_litellm().encoding
    return encoding.decode(list(tokens), errors="ignore")
