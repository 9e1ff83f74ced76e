"""What a format cannot hold, counted by a sentence, and values as every reader of JSON takes them.

    losses = Losses()
    losses.plain({"reward": math.nan})      # {"reward": None}
    losses.notes()                          # ["1 × number that is not finite: written as null"]

A text with a lone surrogate is no Unicode: readers refuse the whole file, so it becomes U+FFFD.
"""

import json
import math
from collections import Counter
from typing import Any, cast

from pydantic_core import to_jsonable_python

SURROGATE = "text with a lone surrogate: written with U+FFFD in its place"
NOT_FINITE = "number that is not finite: written as null"

TOO_DEEP = "value nested deeper than 100 levels: written as text"
_DEEPEST = 100


class Losses:
    """Counts of what was left out, changed or moved, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.attempts = 0
        """Left out whole."""
        self.groups = 0
        """Of which no attempt is left."""

    def add(self, reason: str, number: int = 1) -> None:
        if number:
            self._counts[reason] += number

    def notes(self) -> list[str]:
        """One line for each reason, in order of first appearance."""
        return [f"{number:,} × {reason}" for reason, number in self._counts.items()]

    def text(self, text: str) -> str:
        """The text as Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError:
            self.add(SURROGATE)
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pairs become one character
        return text

    def number(self, value: float | None) -> float | None:
        """The number; None for NaN and infinities, which JSON has not."""
        if value is None or math.isfinite(value):
            return value
        self.add(NOT_FINITE)
        return None

    def plain(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON: texts are Unicode, numbers are finite, and nothing is left out of objects and lists."""
        match value:
            case dict() | list() | tuple() if depth == _DEEPEST:
                self.add(TOO_DEEP)
                return self.text(_as_text(cast(Any, value)))
            case str():
                return self.text(value)
            case None | bool() | int():
                return value
            case float():
                return self.number(value)
            case dict():
                items = cast("dict[Any, Any]", value).items()
                return {self.text(str(name)): self.plain(each, depth + 1) for name, each in items}
            case list() | tuple():
                return [self.plain(each, depth + 1) for each in cast("list[Any]", value)]
            case _:
                return self.plain(to_jsonable_python(value, fallback=repr), depth)


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, default=repr)
    except (RecursionError, ValueError):
        return "…"
