"""The one thread of a process that holds a cassette's storage open, and the heartbeat of the process's claims."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from gavel.llm.cassette_storage import Claim, Entry, Storage, StoredReply
from gavel.llm.errors import CassetteError
from gavel.llm.question_claims import BEAT, holder_name

_T = TypeVar("_T")


Claimed = tuple[Claim | None, list[StoredReply]]
"""The claim that stands in the way, and the replies that are on file by now."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is on file of a question when it is first looked up."""

    replies: list[StoredReply]
    claimed: Claimed | CassetteError | None = None
    """What came of claiming it, where no reply is on file; None = it was not tried."""


class StorageThread:
    """Runs work on a storage, which it opens when the first work comes."""

    def __init__(self, open_storage: Callable[[], Storage]) -> None:
        self.holder = holder_name()
        self._open_storage = open_storage
        self._storage: Storage | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cassette")
        self._claims: set[str] = set()
        self._closing = threading.Event()
        self._heart: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        return self._storage is not None

    @property
    def commits_in_order(self) -> bool:
        """Whether all that is made of a reply is committed after the reply: then nobody waits until it is kept."""
        return False

    def submit(self, work: Callable[[Storage], _T]) -> "Future[_T]":
        return self._thread.submit(self._do, work)

    def _do(self, work: Callable[[Storage], _T]) -> _T:
        if self._storage is None:
            self._storage = self._open_storage()
        return work(self._storage)

    def look(self, key: str, *, claims: bool) -> "Future[Look]":
        """Looks a question up and, where no reply is on file, claims it if it `claims`."""

        def work(storage: Storage) -> Look:
            replies = storage.replies(key)
            if replies or not claims:
                return Look(replies)
            try:
                return Look(replies, self._claim(storage, key))
            except CassetteError as error:
                return Look(replies, error)

        return self.submit(work)

    def claim(self, key: str) -> "Future[Claimed]":
        """Claims a question."""
        return self.submit(lambda storage: self._claim(storage, key))

    def _claim(self, storage: Storage, key: str) -> Claimed:
        return self._claim_against(storage, key), storage.replies(key)

    def _claim_against(self, storage: Storage, key: str) -> Claim | None:
        """Claims a question; gives the claim of another process that stands in the way.

        A claim of its own may be there: when a storage was lost between a claim and the answer to it, or at a release.
        """
        other = storage.claim(key, self.holder)
        if other is not None and other.holder == self.holder:
            other = None
        self._hold(key, other is None)
        return other

    def keep(self, entries: Sequence[Entry]) -> "Future[list[StoredReply]]":
        """Stores the entries and releases the claim on the question of the last one; gives the replies to it that are
        on file then."""
        key = entries[-1].question.key

        def work(storage: Storage) -> list[StoredReply]:
            storage.keep(entries)
            replies = storage.replies(key)
            self._release(storage, key)
            return replies

        return self.submit(work)

    def take_over(self, key: str, claim: Claim) -> "Future[bool]":
        def work(storage: Storage) -> bool:
            taken = storage.take_over(key, self.holder, claim)
            self._hold(key, taken)
            return taken

        return self.submit(work)

    def release(self, key: str) -> None:
        """Releases the claim once the work before is done, if this process holds it then; does not wait."""
        self.submit(lambda storage: self._release(storage, key))

    def _release(self, storage: Storage, key: str) -> None:
        if key in self._claims:
            self._claims.discard(key)
            storage.release(key, self.holder)

    def _hold(self, key: str, held: bool) -> None:
        if not held:
            return
        self._claims.add(key)
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="cassette heartbeat", daemon=True)
            self._heart.start()

    def _beat(self) -> None:
        while not self._closing.wait(BEAT):
            if not self._claims:
                continue
            try:
                self.submit(lambda storage: storage.renew(self.holder)).result()
            except CassetteError:  # such as a full disk: the claims expire, and a question may be paid for twice
                continue
            except RuntimeError:  # the interpreter exits
                return

    def close(self) -> None:
        self._closing.set()
        if (storage := self._storage) is not None:
            self._thread.submit(storage.close).result()
        self._thread.shutdown()
