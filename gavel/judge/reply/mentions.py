"""Mentions: where a text names members, by whole words and in upper or lower case.

    mentions = Mentions(["W7QX", "B3KD"])
    mentions.sub("member", "w7qx beats B3KD9")      "member beats B3KD9"

It does what a pattern of alternatives does, `(?<![A-Za-z0-9])(?:W7QX|B3KD)(?![A-Za-z0-9])`, without the time to compile
one: the names are others for every group.
"""

import re
from collections.abc import Collection, Iterator

RUN = re.compile(r"[A-Za-z0-9]+")
"""A whole word of the letters and digits that names consist of."""


class Mentions:
    """Finds names, which are ASCII letters and digits, like a pattern does."""

    def __init__(self, names: Collection[str]) -> None:
        if other := [name for name in names if not RUN.fullmatch(name)]:
            raise ValueError(f"a member's name is letters and digits, not {other[0]!r}")
        self._names = frozenset(name.casefold() for name in names)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        folded = text.casefold()
        names = {name for name in self._names if name in folded}
        return (found for found in RUN.finditer(text) if found[0].casefold() in names) if names else iter(())

    def search(self, text: str) -> re.Match[str] | None:
        return next(self.finditer(text), None)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        found = RUN.fullmatch(text)
        return found if found and found[0].casefold() in self._names else None

    def sub(self, replacement: str, text: str) -> str:
        return self.subn(replacement, text)[0]

    def subn(self, replacement: str, text: str) -> tuple[str, int]:
        """The text with the replacement, taken as it is, for every name, and how many there were."""
        parts, end, count = list[str](), 0, 0
        for found in self.finditer(text):
            parts += text[end : found.start()], replacement
            end, count = found.end(), count + 1
        return ("".join([*parts, text[end:]]) if count else text), count
