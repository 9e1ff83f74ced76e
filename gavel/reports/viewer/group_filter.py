"""Which groups a list shows: what an address says, as a condition of SQL and as further addresses.

wanted = GroupFilter.read({"run": "demo/clerk", "show": "discordant", "q": "refund"})
wanted.condition()               # ("run = ? AND discordant > 0 AND …", ["demo/clerk", …])
wanted.address(page=2)           # "/groups?run=demo%2Fclerk&show=discordant&q=refund&page=2"
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from gavel.base.errors import GavelError

SHOWN = {
    "scored": ("all members scored", "status = 'scored'"),
    "unscored": ("with unscored members", "unscored > 0 AND status != 'unjudged'"),
    "degenerate": ("no signal: identical members", "status = 'degenerate'"),
    "tied": ("all scores equal", "spread = 0 AND members > 1"),
    "flagged": ("flagged by a rule", "flags != ''"),
    "discordant": ("judge ≠ success or hand-written reward", "discordant > 0"),
    "failed": ("failed rollouts", "failed > 0"),
    "truncated": ("truncated rollouts", "truncated > 0"),
    "edited": ("sampled turns edited", "edited > 0"),
    "unjudged": ("not judged", "status = 'unjudged'"),
}
"""Names of the filter, their words, and their conditions."""
SORTS = {
    "newest": ("newest first", "step DESC, groups.id DESC"),
    "oldest": ("oldest first", "step, groups.id"),
    "best": ("best first", "mean DESC, groups.id"),
    "worst": ("worst first", "mean IS NULL, mean, groups.id"),
    "spread": ("widest spread first", "spread DESC, groups.id"),
    "discordant": ("most disagreement first", "discordant DESC, groups.id"),
}
PAGE_SIZE = 50
_LONGEST = 500
_WORD = re.compile(r"[^\W_]+", re.UNICODE)


class FilterError(GavelError):
    """An address asks for what there is not."""


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Empty = all."""

    run: str = ""
    """`project/name`, or the path of a judged file."""
    split: str = ""
    step: str = ""
    task: str = ""
    show: str = ""
    """One of `SHOWN`."""
    q: str = ""
    """Words that the group's text has, all of them; the last may be a beginning."""
    sort: str = ""
    page: int = 1

    @classmethod
    def read(cls, values: Mapping[str, str]) -> "GroupFilter":
        """Raises `FilterError`; names that are no part of the filter are passed over."""
        texts = {each.name: values.get(each.name, "").strip() for each in fields(cls) if each.name != "page"}
        page = values.get("page", "1")
        found = cls(**texts, page=int(page) if page.isdecimal() and len(page) < 8 else 0)
        too_long = any(len(text) > _LONGEST for text in texts.values())
        is_step = not found.step or (found.step.isdecimal() and len(found.step) < 10)
        for is_wrong, message, remedy in (
            (found.page < 1, f"there is no page {page:.20}", "Pages are counted from 1."),
            (found.show not in ("", *SHOWN), f"there is no filter {found.show:.60}", f"There are: {', '.join(SHOWN)}."),
            (found.sort not in ("", *SORTS), f"there is no order {found.sort:.60}", f"There are: {', '.join(SORTS)}."),
            (not is_step, f"{found.step:.60} is no step", "Steps are whole numbers."),
            (too_long, "a value is too long", f"Keep it below {_LONGEST} characters."),
        ):
            if is_wrong:
                raise FilterError(message, remedy)
        return found

    @property
    def is_filtered(self) -> bool:
        return replace(self, page=1, sort="") != GroupFilter()

    @property
    def order(self) -> str:
        return SORTS[self.sort or "newest"][1]

    def condition(self) -> tuple[str, list[Any]]:
        """Of SQL, over the columns of `groups`, with its values."""
        parts, values = ["1"], list[Any]()
        for name in ("run", "split", "task", "step"):
            if value := getattr(self, name):
                parts.append(f"{name} = ?")
                values.append(int(value) if name == "step" else value)
        if self.show:
            parts.append(f"({SHOWN[self.show][1]})")
        if words := search_words(self.q):
            parts.append("groups.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(words)
        elif self.q:
            parts.append("0")
        return " AND ".join(parts), values

    def address(self, **changes: Any) -> str:
        """The list with these fields changed; from its first page, unless `page` is among them."""
        changed = replace(self, **{"page": 1, **changes})
        named = {each.name: getattr(changed, each.name) for each in fields(changed)}
        kept = {name: value for name, value in named.items() if value and not (name == "page" and value == 1)}
        return f"/groups?{urlencode(kept, errors='replace')}" if kept else "/groups"


def search_words(text: str) -> str:
    """As a query of SQLite's full-text search, in which no character of the text has a meaning; empty without words."""
    words = _WORD.findall(text)
    return " ".join([*(f'"{word}"' for word in words[:-1]), f'"{words[-1]}"*']) if words else ""
