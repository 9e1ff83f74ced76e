"""The one thread of a process that holds a cassette's storage open, and the heartbeat of the process's claims."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from gavel.llm.cassette_storage import Claim, Storage, StoredReply
from gavel.llm.errors import CassetteError
from gavel.llm.question_claims import BEAT, holder_name

_T = TypeVar("_T")


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

    def submit(self, work: Callable[[Storage], _T]) -> "Future[_T]":
        return self._thread.submit(self._do, work)

    def _do(self, work: Callable[[Storage], _T]) -> _T:
        if self._storage is None:
            self._storage = self._open_storage()
        return work(self._storage)

    def claim(self, key: str) -> "Future[tuple[Claim | None, list[StoredReply]]]":
        """Claims a question; gives the claim that stands in the way, and the replies that are on file by now."""

        def work(storage: Storage) -> tuple[Claim | None, list[StoredReply]]:
            other = storage.claim(key, self.holder)
            self._hold(key, other is None)
            return other, storage.replies(key)

        return self.submit(work)

    def take_over(self, key: str, claim: Claim) -> "Future[bool]":
        def work(storage: Storage) -> bool:
            taken = storage.take_over(key, self.holder, claim)
            self._hold(key, taken)
            return taken

        return self.submit(work)

    def release(self, key: str) -> None:
        """Releases the claim once the work before is done, if this process holds it then; does not wait."""

        def work(storage: Storage) -> None:
            if key in self._claims:
                self._claims.discard(key)
                storage.release(key, self.holder)

        self.submit(work)

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
