"""Texts that are like a text shown before but for one stretch of lines: a file that is read again after an edit.

    change = Blocks({before: 3}).find_change(after)                     block 3 but for lines 2-2: was "b", now "B"
    apply_change(before, change.kept, change.count, change.new)         after

Lossless: `apply_change` makes the text of the block and the change.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MIN_CHANGED_CHARACTERS = 400
"""Shorter texts are shown in full: lines that are named by numbers take more effort to read."""
_MAX_SHARE = 0.4
"""Largest share of the text that the stretch may be, the old one and the new one together."""
_MAX_BLOCKS = 4
"""Blocks that a text is compared with: those that begin or end with the same line."""
_NAMED = re.compile(r"(\d+) (?:but for lines (\d+)-(\d+)|with more after line (\d+))")


@dataclass(frozen=True, slots=True)
class Change:
    """The stretch of lines in which a text differs from a block."""

    block: int
    kept: int
    """Lines of the block before the stretch."""
    count: int
    """Lines of the block in the stretch."""
    old: str | None
    """What stands there in the block; None = nothing."""
    new: str | None
    """What stands there in the text; None = nothing."""

    @property
    def name(self) -> str:
        """`3 but for lines 4-5`, counted from 1."""
        if not self.count:
            return f"{self.block} with more after line {self.kept}"
        return f"{self.block} but for lines {self.kept + 1}-{self.kept + self.count}"


def read_name(name: str) -> tuple[str, int, int] | None:
    """The block's number, the lines kept and the lines in the stretch, from `Change.name`; None = no change's name."""
    found = _NAMED.fullmatch(name)
    if found is None:
        return None
    if found[4] is not None:
        return found[1], int(found[4]), 0
    return found[1], int(found[2]) - 1, int(found[3]) - int(found[2]) + 1


class Blocks:
    """Numbered texts that changed ones may refer to."""

    def __init__(self, texts: Mapping[str, int]) -> None:
        self._texts = {number: text for text, number in texts.items() if len(text) >= MIN_CHANGED_CHARACTERS // 2}
        self._by_line: dict[str, list[int]] = {}
        for number, text in self._texts.items():
            for line in dict.fromkeys(_ends(text)):
                self._by_line.setdefault(line, []).append(number)

    def find_change(self, text: str) -> Change | None:
        """The smallest change that makes the text of a block; None = none is small enough to be worth its while."""
        if len(text) < MIN_CHANGED_CHARACTERS:
            return None
        numbers = dict.fromkeys(number for line in _ends(text) for number in self._by_line.get(line, ()))
        changes = [_change(number, self._texts[number], text) for number in list(numbers)[:_MAX_BLOCKS]]
        smallest = min(changes, key=_size, default=None)
        return smallest if smallest and _size(smallest) <= _MAX_SHARE * len(text) else None


def apply_change(block: str, kept: int, count: int, new: str | None) -> str:
    """The block's text with `count` lines after the first `kept` replaced."""
    start = _line_start(block, 0, kept)
    end = _line_start(block, start, count)
    after = block[end:]
    return block[:start] + ("" if new is None else new + "\n" * bool(after)) + after


def _change(number: int, block: str, text: str) -> Change:
    start = block.rfind("\n", 0, _same_beginning(block, text)) + 1
    after = _same_end(block, text, min(len(block), len(text)) - start)
    while after and not all(len(of) - after == start or of[-after - 1] == "\n" for of in (block, text)):
        after = max(0, len(text) - 1 - text.find("\n", len(text) - after)) if "\n" in text[-after:] else 0
    old, new = block[start : len(block) - after], text[start : len(text) - after]
    kept, count = block.count("\n", 0, start), old.count("\n") + bool(old and not old.endswith("\n"))
    return Change(number, kept, count, _shown(old, after), _shown(new, after))


def _shown(stretch: str, after: int) -> str | None:
    """A stretch of lines without the line break before what follows; None for no lines."""
    return (stretch.removesuffix("\n") if after else stretch) if stretch else None


def _size(change: Change) -> int:
    return len(change.old or "") + len(change.new or "")


def _same_beginning(one: str, other: str) -> int:
    """Length of the common beginning, by bisection: comparing long slices is faster than characters one by one."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _same_end(one: str, other: str, most: int) -> int:
    """Length of the common end, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        same = one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]
        low, high = (middle, high) if same else (low, middle - 1)
    return low


def _line_start(text: str, position: int, lines: int) -> int:
    """The position after so many lines; the end of the text where it has fewer."""
    for _ in range(lines):
        found = text.find("\n", position)
        if found < 0:
            return len(text)
        position = found + 1
    return position


def _ends(text: str) -> Iterable[str]:
    """The first line of a text, and the last one that is not empty."""
    last = text.rstrip("\n")
    return text[: text.find("\n") + 1 or len(text)], last[last.rfind("\n") + 1 :]
