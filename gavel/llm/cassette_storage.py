"""What a cassette needs of the place that keeps its replies: a file now, a database for a service.

A cassette opens its storage in a thread of its own, once per process, and calls it from that thread only: methods may
block. A storage may be used by several processes at once. What cannot be read or written is a `CassetteError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gavel.llm.question import Question
from gavel.llm.types import Reply


@dataclass(frozen=True, slots=True)
class Entry:
    """A question with its reply."""

    question: Question
    reply: Reply
    repaired_by: str = ""
    """Key of the question that sent an unusable reply back, and whose reply is kept as well; empty for a reply that
    could be used."""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply on file."""

    reply: Reply
    repaired_by: str
    """As in `Entry`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """That a process is about to get the reply to a question."""

    holder: str
    """The process, see `holder_name`."""
    beats: int
    """Renewals so far: a living holder renews its claims every few seconds."""
    age: float
    """Seconds since the last renewal, by the wall clock."""


class Storage(Protocol):
    """Keeps replies and claims."""

    def replies(self, key: str) -> list[StoredReply]:
        """The replies to a question, oldest first."""
        ...

    def keep(self, entries: Sequence[Entry]) -> None:
        """Stores all entries or none; a reply that the question has on file already is not stored twice."""
        ...

    def similar(self, question: Question) -> list[Mapping[str, str]]:
        """The parts of stored questions that resemble an unknown one; empty when nothing is stored."""
        ...

    def claim(self, key: str, holder: str) -> Claim | None:
        """Claims a question; None = the claim is `holder`'s now, else the claim that stands."""
        ...

    def take_over(self, key: str, holder: str, claim: Claim) -> bool:
        """Replaces a claim of a dead process, unless it was renewed or taken over in the meantime."""
        ...

    def renew(self, holder: str) -> None:
        """Shows that the holder of these claims is alive."""
        ...

    def release(self, key: str, holder: str) -> None:
        """Removes the holder's claim, if it has one."""
        ...

    def close(self) -> None: ...
