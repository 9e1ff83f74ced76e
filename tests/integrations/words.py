"""A tokenizer of words, for hooks that are given tokens. Token 0 is the end of a text."""

from collections.abc import Iterable

END = 0


class Words:
    def __init__(self) -> None:
        self._words = ["<end>"]

    def encode(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self._words:
                self._words.append(word)
        return [self._words.index(word) for word in text.split()]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        return " ".join(self._words[one] for one in ids if one != END or not skip_special_tokens)
