"""Which judgements the list shows: what its form says, as a query and as addresses of further pages.

filter = ListFilter.read({"status": "finished", "since": "2026-11-22T09:00", "project": ""})
filter.query(caller)               what the store is asked for
filter.address(project="desk")     "/?project=desk&status=finished&since=2026-11-22T09%3A00"
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import get_args
from urllib.parse import urlencode

from gavel.judge.service.engine.caller import Caller
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.schemas.bodies import PendingStatus, unix_seconds
from gavel.judge.service.schemas.records import ID_PATTERN, Query
from gavel.scenarios.judgement import GroupStatus

_PENDING: tuple[str, ...] = get_args(PendingStatus)
_FINISHED: tuple[str, ...] = (*get_args(GroupStatus), "failed")
STATUSES = {
    "unfinished": frozenset(_PENDING),
    "finished": frozenset(_FINISHED),
    **{status: frozenset({status}) for status in (*_PENDING, *_FINISHED)},
}
"""What a list may be filtered by, in the order of the form, and the statuses that each means."""
PAGE_SIZE = 50
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class ListFilter:
    """The fields of the form, as text; empty = all."""

    project: str = ""
    status: str = ""
    """One of `STATUSES`."""
    judge: str = ""
    since: str = ""
    """A time in UTC, such as 2026-11-22T09:00; the first that is shown."""
    until: str = ""
    """The first that is not shown."""
    before: str = ""
    """Id of the last judgement of the page before."""

    @classmethod
    def read(cls, values: Mapping[str, str]) -> "ListFilter":
        """The filter in an address; other names are no part of it. Raises `Problem` for a value that is none."""
        found = cls(**{field.name: values.get(field.name, "").strip() for field in fields(cls)})
        if found.status and found.status not in STATUSES:
            raise _refused(f"there is no status {found.status:.60}.", f"There are: {', '.join(STATUSES)}.")
        if found.before and not re.match(ID_PATTERN, found.before):
            raise _refused(f"there is no page after {found.before:.60}.", "Leave before out for the first page.")
        for value in (found.project, found.judge):
            if "\0" in value or len(value) > _LONGEST:
                raise _refused("a value is too long, or has the character 0.", "Shorten it.")
        _, _ = _seconds(found.since), _seconds(found.until)
        return found

    @property
    def is_filtered(self) -> bool:
        """Whether judgements are left out by more than the page."""
        return replace(self, before="") != ListFilter()

    def query(self, caller: Caller) -> Query:
        """What the caller sees of it; one judgement more than a page has, which tells whether there is another page.

        Raises `Problem` for a project that is not the caller's.
        """
        if self.project and not caller.may_use(self.project):
            own = ", ".join(caller.projects or ())
            raise Problem(403, "forbidden", f"your key is not for the project {self.project!r}.", f"It is for: {own}.")
        projects = (self.project,) if self.project else caller.projects
        return Query(
            projects=None if projects is None else frozenset(projects),
            statuses=STATUSES.get(self.status, frozenset()),
            judge=self.judge or None,
            since=_seconds(self.since),
            until=_seconds(self.until),
            before=self.before or None,
            limit=PAGE_SIZE + 1,
        )

    def address(self, **changes: str) -> str:
        """The list with these fields changed; from its first page, unless `before` is among them."""
        changed = replace(self, **{"before": "", **changes})
        named = {field.name: getattr(changed, field.name) for field in fields(changed)}
        query = urlencode({name: value for name, value in named.items() if value}, errors="replace")
        return f"/?{query}" if query else "/"


def _seconds(text: str) -> float | None:
    """Unix seconds; a time without a zone is UTC."""
    try:
        return unix_seconds(text) if text else None
    except ValueError:
        raise _refused(f"{text:.60} is no time.", "Write it as 2026-11-22T09:00, in UTC.") from None


def _refused(detail: str, remedy: str) -> Problem:
    return Problem(422, "invalid-request", detail, remedy)
