"""A log, line by line, without the colours of a terminal."""

import io
import re
from collections.abc import Callable

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: str) -> str:
    """The text without a terminal's escapes."""
    return _ESCAPES.sub("", text)


class LineWriter(io.TextIOBase):
    """A stream whose whole lines are told."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, self._begun = (self._begun + plain(text).replace("\r", "\n")).split("\n")
        for line in lines:
            if line.strip():
                self._say(line.rstrip())
        return len(text)

    def close(self) -> None:
        if self._begun.strip():
            self._say(self._begun.rstrip())
        self._begun = ""
        super().close()
