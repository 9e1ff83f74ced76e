"""A tokenizer as renderers use it: they ask for the tokens of the same few headers at every turn.

    renderer = create_renderer(RememberedEncodings(tokenizer), config)

Everything else is the tokenizer's own.
"""

from functools import lru_cache
from typing import Any

_LONGEST = 64
"""Characters of a text that is remembered."""
_TEXTS = 1024
_PLAIN = {"add_special_tokens": False}
_WITH_OFFSETS = {"add_special_tokens": False, "return_offsets_mapping": True}


class RememberedEncodings:
    """Remembers the encodings of short texts, the least recently used of which are dropped first."""

    def __init__(self, tokenizer: Any) -> None:
        """No token may be added to `tokenizer` from now on."""
        self._tokenizer = tokenizer
        self._ids = lru_cache(_TEXTS)(lambda text: tuple(tokenizer.encode(text, **_PLAIN)))
        self._with_offsets = lru_cache(_TEXTS)(lambda text: tokenizer(text, **_WITH_OFFSETS))

    def encode(self, text: Any, **options: Any) -> list[int]:
        if options == _PLAIN and _is_short(text):
            return list(self._ids(text))
        return self._tokenizer.encode(text, **options)

    def __call__(self, text: Any, **options: Any) -> Any:
        """With offsets, the answer for a short text is shared: its lists are read only."""
        if options == _WITH_OFFSETS and _is_short(text):
            return self._with_offsets(text)
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "_tokenizer":  # not set yet: while it is copied
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)


def _is_short(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _LONGEST
