"""The embedded engine: continuous batching over any transformers causal language model.

One thread owns the model. Requests are admitted between two forward passes, so conversations join and leave the batch
at any time; their keys and values stay in a bounded number of slots and are reused by prefix. A pass serves requests of
one adapter, and a request uses one adapter from its first token to its last. Random numbers depend on the request (its
seed and the token's position), not on the batch, so a request gives the same tokens whatever else is sampled.

A log-prob is that of the distribution from which its token was drawn: where a grammar forbids the token that the policy
draws, another is drawn among those that fit, with a random number of its own.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from gavel.trainer.engines.grammar import Constraint, GrammarError, Grammars, constraint_of
from gavel.trainer.engines.kv_cache import Slots, StateSlots
from gavel.trainer.engines.passes import AdapterCache, BatchedPasses, CachedAdapter, SinglePasses
from gavel.trainer.engines.protocol import (
    DEADLINE,
    Adapter,
    Engine,
    EngineError,
    Sampled,
    SamplingRequest,
    check_length,
    closed_error,
    settle,
)
from gavel.trainer.kernels.fused_layers import fuse_norms
from gavel.trainer.kernels.lm_head import keep_logits_precise
from gavel.trainer.policy.loading import plain_logits, text_decoder, why_unbatched

T = TypeVar("T")

_BLOCK = 64
"""Vocabulary entries per partial sum."""
_BELOW = 1 - 2**-40
"""Keeps a fraction that was rounded to 1 below the total."""


def uniform_numbers(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) that depend on seed and position alone: SplitMix64 (Steele et al., 2014). `[n]`"""
    with np.errstate(over="ignore"):
        state = _mix(seeds.astype(np.uint64)) + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        return (_mix(state) >> np.uint64(11)) * 2.0**-53


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def sample_tokens(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF sampling: the tokens where the cumulative probabilities pass `uniforms`. `[rows]`

    `probabilities` `[rows, vocabulary]` need not sum to exactly 1; a token of probability 0 is never sampled. The block
    is found first and then the token in it: one cumulative sum over a large vocabulary costs more than the logits.
    """
    rows, vocabulary = probabilities.shape
    blocks = torch.nn.functional.pad(probabilities, (0, -vocabulary % _BLOCK)).view(rows, -1, _BLOCK)
    block, rest = _passed(blocks.sum(-1), uniforms)
    token = _passed(blocks[torch.arange(rows, device=blocks.device), block], rest)[0]
    return block * _BLOCK + token


def _passed(weights: torch.Tensor, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index at which the cumulative `weights` `[rows, n]` pass `shares` of their sum, and the fraction within it.
    `[rows]`"""
    upto = weights.double().cumsum(-1)
    wanted = shares[:, None] * upto[:, -1:] * _BELOW
    at = torch.searchsorted(upto, wanted, right=True).clamp(max=weights.shape[1] - 1)  # for sums that are NaN
    before = torch.where(at > 0, upto.gather(-1, (at - 1).clamp(min=0)), 0.0)
    into = (wanted - before) / (upto.gather(-1, at) - before)
    return at[:, 0], into[:, 0].clamp(0, 1)


_SEED_BITS = 2**64 - 1
_ANOTHER = 0x5851F42D4C957F2D
"""Offset between the seed of a row and that of tokens that are drawn again."""


@dataclass(slots=True)
class Draw:
    """One token."""

    token: int
    logprob: float
    again: bool = False
    """True if the policy first drew a token that the grammar forbids."""


def draw_tokens(logits: torch.Tensor, rows: Sequence["RunningReply"]) -> list[Draw | GrammarError]:
    """The next token of each row. `logits` `[rows, vocabulary]` are overwritten."""
    temperatures = torch.tensor([row.request.temperature for row in rows], device=logits.device)
    shaped = [(at, row.request.shaping) for at, row in enumerate(rows) if row.request.shaping is not None]
    for at, shaping in shaped:
        logits[at] = shaping.logits(logits[at], rows[at].request.prompt_ids, rows[at].token_ids)
    logprobs = torch.log_softmax(logits / temperatures.where(temperatures > 0, 1.0)[:, None], -1)
    for at, shaping in shaped:
        logprobs[at] = shaping.logprobs(logprobs[at])
    chosen = _choose(logprobs, logits, temperatures, rows)
    chosen_logprobs = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
    draws = [Draw(*each) for each in zip(chosen.tolist(), chosen_logprobs, strict=True)]
    found: list[Draw | GrammarError] = [*draws]
    for at, row in enumerate(rows):
        if row.constraint is not None and not row.constraint.take(draws[at].token):
            try:
                found[at] = _draw_again(row, row.constraint, logits[at], logprobs[at])
            except GrammarError as error:
                found[at] = error
    return found


def _choose(
    logprobs: torch.Tensor,
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    rows: Sequence["RunningReply"],
    apart: int = 0,
) -> torch.Tensor:
    """The token of each row by the random number of its seed and position, at temperature 0 the likeliest. `[rows]`"""
    seeds = np.array([(row.request.seed ^ apart) & _SEED_BITS for row in rows], dtype=np.uint64)
    uniforms = uniform_numbers(seeds, np.array([len(row.token_ids) for row in rows]))
    chosen = sample_tokens(logprobs.exp(), torch.from_numpy(uniforms).to(logits.device))
    return torch.where(temperatures > 0, chosen, logits.argmax(-1)) if (temperatures == 0).any() else chosen


def _draw_again(row: "RunningReply", rules: Constraint, logits: torch.Tensor, logprobs: torch.Tensor) -> Draw:
    """A token among those that fit. Raises `GrammarError`."""
    temperature = row.request.temperature
    forbidden = ~torch.from_numpy(rules.allowed()).to(logits.device)
    masked = logprobs.masked_fill(forbidden, -torch.inf)
    if not masked.max() > -torch.inf:  # the tail that was cut off held all of them
        masked = (logits / (temperature or 1.0)).masked_fill(forbidden, -torch.inf)
    logprobs = torch.log_softmax(masked, -1)
    again = _choose(logprobs[None], logprobs[None], logits.new_tensor([temperature]), [row], _ANOTHER)
    drawn = Draw(int(again), float(logprobs[again]), again=True)
    rules.take(drawn.token)
    return drawn


@dataclass(slots=True, eq=False)
class RunningReply:
    """A reply in progress: its tokens so far, and the slot in which it is computed."""

    request: SamplingRequest
    future: "Future[Sampled]"
    ids: np.ndarray
    """The prompt's token ids."""
    adapter: CachedAdapter
    constraint: Constraint | None
    slot: int = -1
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    redrawn: int = 0

    def extend(self, drawn: Draw) -> None:
        self.token_ids.append(drawn.token)
        self.logprobs.append(drawn.logprob)
        self.redrawn += drawn.again
        if self.request.on_tokens is not None:
            version = self.adapter.version
            self.request.on_tokens(Sampled([drawn.token], [drawn.logprob], "stop", version, int(drawn.again)))

    def sampled(self, max_context: int) -> Sampled | None:
        """The reply; None while it goes on, and while its prompt is not fully computed."""
        if not self.token_ids:
            return None
        stopped = self.token_ids[-1] in self.request.stop_ids
        room = min(self.request.max_tokens, max_context - len(self.ids))
        if not stopped and len(self.token_ids) < room:
            return None
        reason = "stop" if stopped else "length"
        return Sampled(self.token_ids, self.logprobs, reason, self.adapter.version, self.redrawn)


logger = logging.getLogger(__name__)

_WORTH_WAITING = 16
"""A request waits for another of its wave when it can reuse at least this many prefix tokens of it."""
_PATIENCE = 3
"""Passes between two admissions; requests that arrive in between are prefilled together."""
_DENSE = 0.6
"""Share of busy slots above which computing idle slots too is cheaper than gathering the busy ones."""

Arrival = tuple["Future[Any]", Callable[[], None]]
"""What is done with an arrival between two passes; should the engine stop before, its future fails."""


class TransformersEngine(Engine):
    """An `Engine` in this process; the storage of its model's weights may be the learner's."""

    def __init__(
        self,
        model: Any,
        *,
        slots: int = 128,
        max_context: int = 4096,
        versions: int = 1,
        pass_tokens: int = 8192,
        grammars: Grammars | None = None,
    ) -> None:
        """`model` is a transformers causal language model that nothing else uses from now on; others may read its
        weights.

        `versions`: adapters kept, including the live one; one that requests in flight use is kept until they end.
        `pass_tokens`: of prompts, computed at once; bounds memory.
        `grammars`: without them requests can have none.
        A model with layers that keep another state than keys and values is sampled one conversation at a time.
        """
        self._model = model.eval()
        fuse_norms(text_decoder(model), exact=False)
        keep_logits_precise(model)
        alone = why_unbatched(model.config, max_context)
        self._slots = Slots(slots, max_context) if alone is None else StateSlots(slots, max_context)
        self._pass_tokens = pass_tokens
        self._passes = BatchedPasses(model, self._slots) if alone is None else SinglePasses(model, slots)
        if alone is not None:
            logger.warning(
                "%s is sampled one conversation at a time, which is exact, but slow (%s); --engine vllm is faster.",
                model.config.model_type,
                alone,
            )
        self._adapters = AdapterCache(model, versions)
        self._grammars = grammars
        self._arrivals: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._waiting: list[RunningReply] = []
        self._running: list[RunningReply] = []
        self._closed = False
        self._gate = threading.Lock()
        """Prevents enqueueing after close."""
        self._thread = threading.Thread(target=self._run, name="gavel-engine", daemon=True)
        self._thread.start()

    @property
    def adapter_versions(self) -> list[int]:
        return [adapter.version for adapter in self._adapters.published]

    @property
    def serves_base(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def max_context(self) -> int:
        return self._slots.max_context

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        future: Future[Sampled] = Future()
        try:
            check_length(request, self.max_context)
            adapter = self._adapters.find(request.adapter_version)
            constraint = constraint_of(request, self._grammars)
            ids = np.asarray(request.prompt_ids, dtype=np.int32)
            reply = RunningReply(request, future, ids, adapter, constraint)
            self._queue(future, partial(self._waiting.append, reply))
        except EngineError as error:
            settle(future, error)
        return future

    def publish(self, adapter: Adapter, version: int) -> None:
        activate = self._adapters.prepare(adapter)
        self._between_passes(lambda: self._adapters.publish(activate, version))

    def score(self, token_ids: Sequence[int]) -> list[float]:
        def forward() -> list[float]:
            self._adapters.activate(self._adapters.find(None))
            ids = torch.tensor([list(token_ids)], device=self._model.device)
            logits = plain_logits(self._model, ids)[0, :-1].float()
            return torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0].tolist()

        return self._between_passes(forward)

    def cache_growth(self) -> int:
        return self._slots.growth

    def close(self) -> None:
        with self._gate:
            if not self._closed:
                self._closed = True
                self._arrivals.put(None)
        self._thread.join(timeout=DEADLINE)

    def _queue(self, future: "Future[Any]", act: Callable[[], None]) -> None:
        """Raises `EngineError` when the engine is closed."""
        with self._gate:
            if self._closed:
                raise closed_error()
            self._arrivals.put((future, act))

    def _between_passes(self, call: Callable[[], T]) -> T:
        done: Future[T] = Future()

        def act() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(call())
                except Exception as error:
                    done.set_exception(error)

        self._queue(done, act)
        try:
            return done.result(timeout=DEADLINE)
        except TimeoutError as error:
            done.cancel()
            raise EngineError(f"the engine did not finish a single pass within {DEADLINE:.0f} s") from error

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            passes = 0
            while self._receive(wait=not (self._running or self._waiting)):
                passes += 1
                if passes >= _PATIENCE or not self._running:
                    self._admit()
                    passes = 0
                for adapter in dict.fromkeys(running.adapter for running in self._running):
                    self._decode(adapter)
                for number in self._adapters.evict(each.adapter for each in (*self._running, *self._waiting)):
                    self._slots.forget(number)
        except Exception as error:
            with self._gate:
                self._closed = True
            self._fail(EngineError(f"the engine stopped: {type(error).__name__}: {error}", "Register the model again."))
        else:
            self._fail(EngineError("the engine was closed with requests in flight"))

    def _receive(self, wait: bool) -> bool:
        """Takes all arrivals from the queue, waiting for one when `wait`. False when closing."""
        with contextlib.suppress(queue.Empty):
            while (arrival := self._arrivals.get(block=wait)) is not None:
                arrival[1]()
                wait = False
            return False
        return True

    def _fail(self, error: EngineError) -> None:
        """Fails all requests and jobs; called after closing, so no new ones arrive."""
        futures: list[Future[Any]] = [running.future for running in self._running + self._waiting]
        while not self._arrivals.empty():
            futures += [arrival[0] for arrival in [self._arrivals.get()] if arrival is not None]
        for future in futures:
            settle(future, error)

    def _admit(self) -> None:
        """Fills free slots in waves of one adapter; a request that shares a prefix with the wave waits to copy it."""
        while self._waiting:
            wave: list[RunningReply] = []
            prompts: list[bytes] = []
            postponed: list[RunningReply] = []
            for candidate in self._waiting:
                if candidate.future.cancelled():
                    continue
                if wave and candidate.adapter is not wave[0].adapter:
                    postponed.append(candidate)
                    continue
                ids = candidate.ids
                self._slots.reserve(len(ids))
                shared = self._slots.shared_prefixes(ids, candidate.adapter.number)
                worth_sharing = int(shared.max()) + _WORTH_WAITING
                beginning = ids[:worth_sharing].tobytes()
                waits = len(ids) >= worth_sharing and any(prompt.startswith(beginning) for prompt in prompts)
                slot = None if waits else self._slots.take(ids, shared, candidate.adapter.number)
                if slot is None:
                    postponed.append(candidate)
                else:
                    candidate.slot = slot
                    wave.append(candidate)
                    prompts.append(ids.tobytes())
            self._waiting[:] = postponed
            if not wave:
                return
            self._prefill(wave)

    def _prefill(self, wave: list[RunningReply]) -> None:
        """Computes the new prompt tokens, at most `pass_tokens` in a pass: longest first, a longer one in parts.

        A prompt whose last token alone is new is left to the next decoding pass.
        """
        self._running += wave  # before anything can fail, so that a failure reaches them
        self._adapters.activate(wave[0].adapter)
        left = [running for running in wave if self._new_tokens(running) > 1]
        while left:
            left.sort(key=self._new_tokens, reverse=True)
            width = min(self._new_tokens(left[0]), self._pass_tokens)
            batch = left[: max(1, self._pass_tokens // width)]
            batch.sort(key=lambda running: running.slot)  # neighboring slots are read without a copy
            rows = np.array([running.slot for running in batch])
            starts = self._slots.lengths[rows]
            counts = np.array([min(self._new_tokens(running), width) for running in batch])
            tokens = np.zeros((len(batch), width), dtype=np.int64)
            for row, running in enumerate(batch):
                tokens[row, : counts[row]] = running.ids[starts[row] :][: counts[row]]
            logits = self._forward(rows, tokens, starts, counts)
            whole = [row for row, running in enumerate(batch) if not self._new_tokens(running)]
            left = [running for running in left if self._new_tokens(running)]
            if whole:
                self._sample([batch[row] for row in whole], logits[whole])

    def _new_tokens(self, running: RunningReply) -> int:
        """Tokens of its prompt that its slot does not hold yet."""
        return len(running.ids) - int(self._slots.lengths[running.slot])

    def _decode(self, adapter: CachedAdapter) -> None:
        for running in [each for each in self._running if each.future.done()]:  # cancelled, or refused
            self._drop(running)
        decoding = [running for running in self._running if running.adapter is adapter]
        if not decoding:
            return
        self._adapters.activate(adapter)
        rows = np.array([running.slot for running in decoding])
        newest = np.array([(running.token_ids or running.ids)[-1] for running in decoding])
        batch = _span(rows)
        starts = self._slots.lengths[batch]
        self._slots.reserve(min(int(starts.max()) + 1, self.max_context))
        self._slots.ids[rows, self._slots.lengths[rows]] = newest
        tokens = np.zeros((len(batch), 1), dtype=np.int64)
        at = np.searchsorted(batch, rows)
        tokens[at, 0] = newest
        counts = np.zeros_like(starts)
        counts[at] = 1
        logits = self._forward(batch, tokens, starts, counts)
        self._sample(decoding, logits[torch.from_numpy(at).to(logits.device)])

    def _drop(self, running: RunningReply) -> None:
        self._slots.release(running.slot)
        self._running.remove(running)

    def _forward(self, rows: np.ndarray, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        logits = self._passes.logits(rows, tokens, starts, counts)
        self._slots.lengths[rows] = starts + counts
        return logits

    def _sample(self, sampling: list[RunningReply], logits: torch.Tensor) -> None:
        for running, drawn in zip(sampling, draw_tokens(logits, sampling), strict=True):
            if isinstance(drawn, GrammarError):
                settle(running.future, drawn)  # it leaves the batch as one that was cancelled
            else:
                running.extend(drawn)
        for running in list(self._running):
            reply = running.sampled(self.max_context)
            if reply is not None:
                self._drop(running)
                settle(running.future, reply)


def _span(rows: np.ndarray) -> np.ndarray:
    """`rows` sorted; with the idle rows between them if those are few, since a contiguous range needs no copy."""
    first, last = rows.min(), rows.max()
    if len(rows) >= _DENSE * (last - first + 1):
        return np.arange(first, last + 1)
    return np.sort(rows)
