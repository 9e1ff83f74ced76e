"""Several samplers as one engine: each request goes to one of them, each adapter to all.

    serving ──lost──▶ gone ──connected──▶ back ──publish, proof──▶ serving

A sampler that is lost is left out, and its requests are begun again on the others; one of which something was heard
already fails, since another sampler may round otherwise. One that comes back has an adapter of an earlier step or none,
so it takes no request before `publish` loads the live one there and `admit` is called.

A request goes to the sampler that holds its conversation, whose keys and values it has computed, unless that is much
busier than the least loaded. Conversations are told apart by hashes of their tokens: a wrong one costs time, no token.
"""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Literal

from gavel.trainer.engines.protocol import (
    Adapter,
    AdapterGone,
    Engine,
    EngineError,
    Sampled,
    SamplingRequest,
    closed_error,
    settle,
)
from gavel.trainer.engines.vllm import VllmEngine

logger = logging.getLogger(__name__)

_KEPT = 16_384
"""Conversations that are remembered; those that went on longest ago are forgotten first."""
FEWEST_MORE, _SHARE_MORE = 4, 2
_CHECK_SECONDS, _FAILED_CHECKS = 5.0, 2
"""Seconds between two health checks of a sampler, and how many in a row it fails before it is left out."""
_LONGEST_WAIT = 120.0
"""Seconds between attempts to connect to a sampler that is gone."""
_CLOSE_SECONDS = 30.0
_ATTEMPTS = 8
"""Samplers that one request may lose."""
_GO_ON = (
    "Start them again, or give the addresses of others, and register the model again: it goes on from the last "
    "checkpoint."
)
_AGAIN = "Begin the request again, as OpenAI's clients do."


def much_busier(load: int, least: int) -> bool:
    """Whether a sampler with `load` requests has so many more than the least loaded that a conversation leaves it."""
    return load > least + max(FEWEST_MORE, least // _SHARE_MORE)


class PoolSchedule:
    """The requests of each sampler, and the conversations that it holds. Not thread-safe."""

    def __init__(self, samplers: int) -> None:
        self.loads = [0] * samplers
        """Requests in flight."""
        self._holders: OrderedDict[int, int] = OrderedDict()
        """Hash of a conversation's tokens -> its sampler."""

    def place(self, prompt_ids: Sequence[int], version: int, among: Collection[int]) -> int:
        """The sampler, of those `among`, that gets a request with this prompt; it counts as loaded until it ends.

        That is the one with the longest conversation that the prompt extends. `version`: of the adapter, since what is
        held was computed with one. Raises `ValueError` for nothing to choose among.
        """
        chosen = min(among, key=lambda sampler: (self.loads[sampler], sampler))
        if self._holders:
            found = (self._holders.get(state, -1) for state in reversed(_states(prompt_ids, version)))
            holder = next((holder for holder in found if holder in among), chosen)
            chosen = chosen if much_busier(self.loads[holder], self.loads[chosen]) else holder
        self.loads[chosen] += 1
        return chosen

    def hold(self, sampler: int, prompt_ids: Sequence[int], token_ids: Sequence[int], version: int) -> None:
        """The sampler holds this conversation. Its prompt is remembered too: chat formats that rewrite an earlier turn
        go on from there."""
        states = _states([*prompt_ids, *token_ids], version)
        for state in (states[len(prompt_ids) - 1], states[-1]):
            self._holders[state] = sampler
            self._holders.move_to_end(state)
        while len(self._holders) > _KEPT:
            self._holders.popitem(last=False)


def _states(token_ids: Sequence[int], version: int) -> list[int]:
    """The hash of each prefix, of one token and more."""
    return list(accumulate(token_ids, lambda state, token: hash((state, token)), initial=hash((version,))))[1:]


Connect = Callable[[], VllmEngine]
"""Connects to a server, or starts one. Raises `EngineError`."""


@dataclass(slots=True, eq=False)
class _Member:
    number: int
    connect: Connect
    engine: VllmEngine
    state: Literal["serving", "gone", "back"] = "serving"
    loaded: bool = False
    """True if a sampler that reconnected has the live adapter."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A request through its attempts, of which one runs at a time."""

    request: SamplingRequest
    future: "Future[Sampled]"
    attempts: int = 0
    heard: bool = False
    """Whether a token of the reply was passed on: another attempt may draw others."""
    running: "Future[Sampled] | None" = None

    def hear(self, piece: Sampled) -> None:
        self.heard = True
        assert self.request.on_tokens is not None
        self.request.on_tokens(piece)

    def cancel_attempt(self, _: object = None) -> None:
        """Cancels the attempt, if the request was cancelled."""
        if self.future.cancelled() and self.running is not None:
            self.running.cancel()


class EnginePool(Engine):
    """An `Engine` over others."""

    def __init__(self, connects: Sequence[Connect]) -> None:
        """Connects to all at once. Raises the `EngineError` of one that cannot be connected to."""
        self._lock = threading.Lock()
        self._error: EngineError | None = None
        self._stopping = threading.Event()
        self._published: list[int] = []
        self._restarted = 0
        self._schedule = PoolSchedule(len(connects))
        engines = _connect_all(connects)
        self._members = [_Member(n, *pair) for n, pair in enumerate(zip(connects, engines, strict=True))]
        self._max_context = min(engine.max_context for engine in engines)
        self._watchers = [
            threading.Thread(target=self._watch, args=(member,), name=f"gavel-sampler-{member.number}", daemon=True)
            for member in self._members
        ]
        for watcher in self._watchers:
            watcher.start()

    @property
    def serving(self) -> list[VllmEngine]:
        """The samplers that take requests."""
        return [member.engine for member in self._members if member.state == "serving"]

    @property
    def returned(self) -> list[VllmEngine]:
        """The samplers that reconnected and have the live adapter: to be proven, then admitted or refused."""
        return [member.engine for member in self._members if member.state == "back" and member.loaded]

    def admit(self, engine: VllmEngine) -> None:
        """A sampler that came back takes requests from now on."""
        with self._lock:
            for member in self._members:
                if member.engine is engine and member.state == "back":
                    member.state = "serving"
        logger.warning("the sampler at %s is back", engine.address)

    def leave_out(self, engine: VllmEngine, error: Exception) -> bool:
        """Takes a sampler out, which must be gone or back; whether it was."""
        member = next((each for each in self._members if each.engine is engine), None)
        if member is None or (member.state == "serving" and not engine.closed):
            return False
        self._leave(member, str(error))
        return True

    def take_counts(self) -> dict[str, float]:
        """`samplers`: those that take requests; `requests_restarted`: since the last call."""
        with self._lock:
            restarted, self._restarted = self._restarted, 0
        return {"samplers": len(self.serving), "requests_restarted": restarted}

    @property
    def adapter_versions(self) -> list[int]:
        held = {version for engine in self.serving for version in engine.adapter_versions}
        return [version for version in self._published if version in held]

    @property
    def closed(self) -> bool:
        return self._error is not None

    @property
    def max_context(self) -> int:
        return self._max_context

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        asked = _Asked(request, Future())
        asked.future.add_done_callback(asked.cancel_attempt)
        self._attempt(asked)
        return asked.future

    def publish(self, adapter: Adapter, version: int) -> None:
        if self._error is not None:
            raise self._error
        asked = [(member, member.engine) for member in self._members if member.state != "gone"]
        with ThreadPoolExecutor(max(1, len(asked))) as threads:
            loading = [threads.submit(engine.publish, adapter, version) for _, engine in asked]
        for (member, engine), load in zip(asked, loading, strict=True):
            error = load.exception()
            if error is None:
                member.loaded = member.engine is engine
            elif isinstance(error, EngineError) and (engine.closed or member.state == "back"):
                self._leave(member, str(error))
            else:
                raise error
        if self._error is not None:
            raise self._error
        self._published = [*(each for each in self.adapter_versions if each != version), version]

    def score(self, token_ids: Sequence[int]) -> list[float]:
        while self._error is None:
            for member in self._members:
                if member.state == "serving":
                    with self._leaving_out(member):
                        return member.engine.score(token_ids)
        raise self._error

    @contextlib.contextmanager
    def release_memory(self) -> Generator[None]:
        def wake(member: _Member, memory: contextlib.AbstractContextManager[None]) -> None:
            with self._leaving_out(member):
                memory.__exit__(None, None, None)

        with contextlib.ExitStack() as asleep:
            for member in [each for each in self._members if each.state == "serving"]:
                memory = member.engine.release_memory()
                with self._leaving_out(member):
                    memory.__enter__()
                    asleep.callback(wake, member, memory)
            yield

    def close(self) -> None:
        with self._lock:
            self._error = self._error or closed_error()
        self._stopping.set()
        until = time.monotonic() + _CLOSE_SECONDS
        for watcher in self._watchers:
            watcher.join(max(0.0, until - time.monotonic()))
        for member in self._members:
            member.engine.close()

    def _attempt(self, asked: _Asked) -> None:
        """Sends the request to a sampler; what becomes of it, `_finish` hears."""
        request = asked.request
        if request.on_tokens is not None:
            request = replace(request, on_tokens=asked.hear)
        try:
            with self._lock:
                member = self._choose(request)
                engine = member.engine
        except EngineError as error:
            settle(asked.future, error)
            return
        asked.attempts += 1
        asked.running = engine.submit(request)
        asked.running.add_done_callback(partial(self._finish, asked, member, engine))
        asked.cancel_attempt()

    def _choose(self, request: SamplingRequest) -> _Member:
        if self._error is not None:
            raise self._error
        version = request.adapter_version
        holders = {
            member.number
            for member in self._members
            if member.state == "serving" and (version is None or version in member.engine.adapter_versions)
        }
        if not holders:
            raise AdapterGone(version or 0, self.adapter_versions)
        live = self.adapter_version if version is None else version
        return self._members[self._schedule.place(request.prompt_ids, live, holders)]

    def _finish(self, asked: _Asked, member: _Member, engine: VllmEngine, attempt: "Future[Sampled]") -> None:
        """Completes the request, begins it again elsewhere, or fails it; called in a thread of `engine`, the member's
        engine at the attempt's start."""
        error = None if attempt.cancelled() else attempt.exception()
        with self._lock:
            self._schedule.loads[member.number] -= 1
            if not attempt.cancelled() and error is None and member.engine is engine and member.state == "serving":
                said = attempt.result()
                self._schedule.hold(member.number, asked.request.prompt_ids, said.token_ids, said.adapter_version)
        if attempt.cancelled():
            return
        lost = isinstance(error, EngineError) and engine.closed
        if lost and member.engine is engine:
            self._leave(member, str(error))
        if not lost or asked.attempts > _ATTEMPTS:
            settle(asked.future, error or attempt.result())
        elif self._error is not None:
            settle(asked.future, self._error)
        elif asked.heard:
            settle(asked.future, EngineError("the sampler of a reply was lost after part of it was heard", _AGAIN))
        else:
            with self._lock:
                self._restarted += 1
            self._attempt(asked)

    def _leave(self, member: _Member, reason: str) -> None:
        """Leaves out a sampler, and tells of it once; the last one ends the pool."""
        with self._lock:
            if member.state == "gone" or self._error is not None:
                return
            served, member.state, member.loaded = member.state == "serving", "gone", False
            left = len(self.serving)
            if not left:
                told = f"none of the {len(self._members)} samplers serves any more; the last one: {reason}"
                self._error = EngineError(told, _GO_ON)
                self._stopping.set()
        if not served:
            logger.warning("the sampler at %s came back, and is left out again: %s", member.engine.address, reason)
        elif left:
            told = "the sampler at %s is left out, and what it was asked begins again on the others (%d): %s"
            logger.warning(told, member.engine.address, left, reason)

    @contextlib.contextmanager
    def _leaving_out(self, member: _Member) -> Generator[None]:
        """Leaves out a sampler that is lost in what is done here."""
        try:
            yield
        except EngineError as error:
            if not member.engine.closed:
                raise
            self._leave(member, str(error))

    def _watch(self, member: _Member) -> None:
        """Detects a lost sampler and reconnects to it; runs in its own thread."""
        failed, wait = 0, _CHECK_SECONDS
        while not self._stopping.wait(wait):
            if member.state == "gone":
                wait = _CHECK_SECONDS if self._connect_again(member) else min(2 * wait, _LONGEST_WAIT)
                failed = 0
                continue
            wait = _CHECK_SECONDS
            failed = 0 if member.engine.healthy() else failed + 1
            if failed >= _FAILED_CHECKS or member.engine.closed:
                self._leave(member, "it does not answer")
                member.engine.close()  # which ends the requests that wait for it

    def _connect_again(self, member: _Member) -> bool:
        member.engine.close()
        try:
            engine = member.connect()
        except (EngineError, OSError) as error:
            logger.debug("the sampler at %s is still gone: %s", member.engine.address, error)
            return False
        shorter = engine.max_context < self._max_context
        if shorter:
            told = "the sampler at %s came back with a context of %d tokens, and %d are needed"
            logger.warning(told, engine.address, engine.max_context, self._max_context)
        if shorter or self._stopping.is_set():
            engine.close()
            return False
        with self._lock:
            member.engine, member.state, member.loaded = engine, "back", False
        return True


def _connect_all(connects: Sequence[Connect]) -> list[VllmEngine]:
    """Connects to all or none: if one fails, those that were reached are closed."""
    with ThreadPoolExecutor(len(connects)) as threads:
        connecting = [threads.submit(connect) for connect in connects]
    errors = [error for each in connecting if (error := each.exception()) is not None]
    if errors:
        for each in connecting:
            if each.exception() is None:
                each.result().close()
        raise errors[0]
    return [each.result() for each in connecting]
