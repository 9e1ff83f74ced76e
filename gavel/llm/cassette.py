"""A store of replies: cache, replay and audit in one SQLite file, or in another storage.

A reply is stored under the hash of model, parameters, schema and messages, and committed before it is used, so that no
reply is paid for twice, even when the process is killed. (A reply that cannot be written, on a full disk, is used
anyway.) Tasks, threads and processes may share a cassette: one of them asks, the others wait for its reply.

Only replies that the asker could use are kept, and replies that a kept repair answers, so that a repaired conversation
replays as it went. A stored reply that the asker of today cannot use is asked for again.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from gavel.llm.budget import ledger_of_this_work
from gavel.llm.cassette_storage import (
    Entry,
    Question,
    SqliteStorage,
    Storage,
    StorageThread,
    StoredReply,
    check_directory,
)
from gavel.llm.errors import CassetteError, CassetteMissError
from gavel.llm.types import Accept, Reply

Mode = Literal["cache", "replay"]

_POLL_SECONDS = 0.05, 0.5
"""The first and the longest pause between looks at what another process asks."""


class Cassette:
    """Replies in a storage: the SQLite file at a path, or what a thread of this process has.

    "cache": known questions are answered from the storage, others are asked and stored. "replay": no model is asked,
    and a question that is not stored is a `CassetteMissError`. A new file is created with its parent directories.
    """

    def __init__(self, storage: str | Path | StorageThread, mode: Mode = "cache") -> None:
        if mode not in ("cache", "replay"):
            raise CassetteError(f'a cassette has the mode "cache" or "replay", not "{mode}".')
        self.path = None if isinstance(storage, StorageThread) else Path(storage)
        """The file; None = another storage."""
        self.mode: Mode = mode
        self.misses = 0
        """Questions that were not stored when they were asked."""
        self.replayed = 0
        """Questions that were answered from the storage."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._asking: dict[str, Future[Reply]] = {}
        self._thread: StorageThread | None = storage if isinstance(storage, StorageThread) else None

    @property
    def asks_now(self) -> bool:
        """Whether an unknown question is asked at once."""
        return self.mode == "cache"

    def check(self) -> None:
        """Raises `CassetteError` when the storage is missing or cannot be used. Opens it, but makes no new file."""
        if self.path is None:
            return
        if self.mode == "cache" and not self.path.exists():
            check_directory(self.path)
        else:
            self._current_thread().submit(lambda _: None).result()

    async def answer(
        self,
        question: Question,
        ask: Callable[[], Awaitable[Reply]],
        accept: Accept | None = None,
        repairs: Sequence[tuple[Question, Reply]] = (),
    ) -> Reply:
        """The stored reply to the question, else that of `ask`; concurrent equal questions are asked once.

        `accept` says whether a reply could be used; one that could not is returned, and not kept. None = all could.
        `repairs`: the unusable replies that the question sends back, with their questions, oldest first; they are kept
        together with a reply that could be used. Raises what `ask` raises, `CassetteError`, and when replaying
        `CassetteMissError`.
        """
        thread, key = self._current_thread(), question.key
        ledger_of_this_work().questions.add(key)
        while True:
            mine, is_new = self._being_asked(key)
            if is_new:
                break
            await asyncio.wait([asyncio.wrap_future(mine)])
            if not mine.cancelled():
                self.replayed += 1
                return replace(mine.result(), cached=True)
        try:
            reply = await self._answer(thread, question, ask, accept, repairs)
            mine.set_result(reply)
            return reply
        except Exception as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asking[key]
            mine.cancel()

    def _being_asked(self, key: str) -> "tuple[Future[Reply], bool]":
        """The reply that a task of this process, in any event loop, is getting, and whether that is the caller now."""
        with self._lock:
            is_new = key not in self._asking
            return self._asking.setdefault(key, Future()), is_new

    async def _answer(
        self,
        thread: StorageThread,
        question: Question,
        ask: Callable[[], Awaitable[Reply]],
        accept: Accept | None,
        repairs: Sequence[tuple[Question, Reply]],
    ) -> Reply:
        key, claims = question.key, self.mode == "cache"
        may_have_lease, known, (pause, longest) = claims, 0, _POLL_SECONDS
        try:
            while True:
                look = await asyncio.wrap_future(thread.look(key, claims=claims, known=known))
                if reply := self._choose(look.replies, accept):
                    may_have_lease = bool(look.is_mine)
                    self.replayed += 1
                    return reply
                if look.is_mine or not claims:
                    break
                if look.is_mine is None:  # none of the replies on file can be used
                    known = len(look.replies)
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
            self.misses += 1
            if not claims:
                raise await asyncio.wrap_future(thread.submit(lambda storage: self._miss(storage, question)))
            reply = replace(await ask(), key=key)
            if accept is not None and not accept(reply):
                return reply
            keeping = asyncio.wrap_future(thread.keep(_entries(question, reply, repairs)))
            keeping.add_done_callback(partial(_release_if_lost, thread, key))
            may_have_lease = False
            if not thread.commits_in_order:
                await asyncio.wait([keeping])
            return reply
        finally:
            if may_have_lease:
                thread.release(key)

    async def has_replies_of(self, model: str) -> bool:
        """Whether a reply of this model is stored."""
        if self.path is not None and not self.path.exists():
            return False
        stored = await asyncio.wrap_future(
            self._current_thread().submit(lambda storage: storage.similar(Question(model, {}, {}, [])))
        )
        return any(parts["model"] == model for parts in stored)

    async def stored(self, question: Question, accept: Accept | None = None) -> Reply | None:
        """The stored reply to the question, as `answer` would give it; None = it is to be asked."""
        thread = self._current_thread()
        reply = self._choose(await asyncio.wrap_future(thread.submit(lambda on: on.replies(question.key))), accept)
        self.replayed += reply is not None
        return reply

    def _choose(self, stored: Iterable[StoredReply], accept: Accept | None) -> Reply | None:
        """The first stored reply that can be used, or whose repair is stored; when replaying, else the first."""
        replies = list(stored)
        for each in replies:
            if each.repaired_by or accept is None or accept(each.reply):
                return each.reply
        return replies[0].reply if replies and self.mode == "replay" else None

    def _miss(self, storage: Storage, question: Question) -> CassetteMissError:
        """The error for an unknown question, with the differences from the most similar one that is stored."""
        where = f"the cassette {self.path}" if self.path else "the cassette"
        stored = storage.similar(question)
        if not stored:
            return CassetteMissError(f"{where} is empty.", 'Record it first: Cassette(path, mode="cache").')
        return CassetteMissError(
            f"{where} has no reply to this question; from the nearest on file differ "
            + _differences_from_nearest(question, stored),
            'Ask what was recorded, or record it: Cassette(path, mode="cache").',
        )

    def _current_thread(self) -> StorageThread:
        if self._pid != os.getpid():  # neither connections nor what the parent is asking survive a fork
            self._pid, self._thread = os.getpid(), None
            self._lock, self._asking = threading.Lock(), {}
        if self._thread is None:
            assert self.path is not None
            self._thread = StorageThread(partial(SqliteStorage, self.path, read_only=self.mode == "replay"))
        return self._thread

    def close(self) -> None:
        """Closes the storage; the next question opens it again."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.close()
        self._thread = None


def _release_if_lost(thread: StorageThread, key: str, keeping: "asyncio.Future[None]") -> None:
    """After a reply that cannot be kept, for example on a full disk: it is paid for, so it is used."""
    if keeping.cancelled() or (error := keeping.exception()) is None:
        return
    thread.release(key)
    if not isinstance(error, CassetteError):
        raise error
    logging.getLogger(__name__).warning("a reply is used, but not kept: %s", error.message)


def _entries(question: Question, reply: Reply, repairs: Sequence[tuple[Question, Reply]]) -> list[Entry]:
    """The reply, after those that it repairs."""
    later = [question.key for question, _ in repairs[1:]] + [question.key]
    return [
        *(Entry(*pair, mended) for pair, mended in zip(repairs, later, strict=bool(repairs))),
        Entry(question, reply),
    ]


def _differences_from_nearest(question: Question, stored: Sequence[Mapping[str, str]]) -> str:
    """How the question differs from the most similar of the `stored` ones (parts as in `Question.parts`)."""
    parts = question.parts

    def likeness(other: Mapping[str, str]) -> tuple[int, int]:
        return sum(other[name] == parts[name] for name in parts), _common_prefix(other["messages"], parts["messages"])

    nearest = max(stored, key=likeness)
    return "; ".join(filter(None, (_difference(name, nearest[name], parts[name]) for name in parts)))


def _difference(name: str, stored: str, asked: str) -> str:
    if stored == asked:
        return ""
    start = max(0, _common_prefix(stored, asked) - 20)
    return f"the {name} (on file …{stored[start : start + 60]}…, asked …{asked[start : start + 60]}…)"


def _common_prefix(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
