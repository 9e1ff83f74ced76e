"""One request to a pool of samplers: begun again on another one when the first is lost, with every token heard once.

    heard from the lost one   12 7 31
    the next one draws        12 7 31 4 9        the same seed: 4 and 9 are news
                         or   12 8               it rounds otherwise: ended, and 4 … are drawn behind 12 7 31

Either way the reply is one that the policy gives, and its log-probs are those with which its tokens were drawn.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from gavel.trainer.engines.protocol import EngineError, Sampled, SamplingRequest

_NOTHING = Sampled([], [], "length", 0)
_CHANGED = EngineError(
    "the sampler of a reply was lost, and the reply cannot go on from what was streamed of it: a grammar or a penalty "
    "looks at the whole reply",
    "Begin the request again.",
)


class PooledRequest:
    """Follows a request through its attempts, of which one runs at a time."""

    def __init__(self, request: SamplingRequest, future: "Future[Sampled]") -> None:
        self.future = future
        self.attempts = 0
        self.strayed = False
        """Whether the attempt drew other tokens than were heard, so that it is ended."""
        self._request = request
        self._kept = _NOTHING
        """What the attempt samples behind, drawn by earlier ones."""
        self._heard = _NOTHING
        """All that was passed on."""
        self._at = 0
        """Tokens that the attempt has drawn, those before it included."""
        self._running: Future[Sampled] | None = None

    @property
    def asked_version(self) -> int | None:
        """The adapter that an attempt must have; None: the live one."""
        return self._heard.adapter_version if self._heard.token_ids else self._request.adapter_version

    @property
    def prompt_ids(self) -> Sequence[int]:
        return self._request.prompt_ids

    def heard_to_its_end(self) -> Sampled | None:
        """The reply, where a lost sampler had drawn all of it."""
        ids = self._heard.token_ids
        if ids and ids[-1] in self._request.stop_ids:
            return replace(self._heard, finish_reason="stop")
        return replace(self._heard, finish_reason="length") if len(ids) == self._request.max_tokens else None

    def attempt(self) -> SamplingRequest:
        """What to ask a sampler for next. Raises `EngineError` for a reply that cannot go on from what was heard."""
        if self.strayed:
            shaping = self._request.shaping
            if self._request.grammar is not None or (shaping is not None and shaping.looks_back):
                raise _CHANGED
            self._kept = self._heard
        self.attempts, self.strayed, self._running = self.attempts + 1, False, None
        self._at = len(self._kept.token_ids)
        return replace(
            self._request,
            prompt_ids=[*self._request.prompt_ids, *self._kept.token_ids],
            max_tokens=self._request.max_tokens - self._at,
            seed=self._request.seed + self._at,
            adapter_version=self.asked_version,
            on_tokens=None if self._request.on_tokens is None else self._listener(self.attempts),
        )

    def runs(self, attempt: "Future[Sampled]") -> None:
        """To be told of the attempt that was submitted: it ends with the request, or when it strays."""
        self._running = attempt
        if self.strayed or self.future.cancelled():
            attempt.cancel()

    def cancel(self) -> None:
        """Ends the attempt."""
        if self._running is not None:
            self._running.cancel()

    def whole(self, rest: Sampled) -> Sampled:
        """The reply that an attempt ended with."""
        return _joined(self._kept, rest) if self._kept.token_ids else rest

    def _listener(self, attempt: int) -> Callable[[Sampled], None]:
        def hear(piece: Sampled) -> None:
            if attempt == self.attempts and not self.strayed:
                self._hear(piece)

        return hear

    def _hear(self, piece: Sampled) -> None:
        count = len(piece.token_ids)
        again = self._heard.token_ids[self._at : self._at + count]
        if piece.token_ids[: len(again)] != again:
            self.strayed = True
            self.cancel()
            return
        self._at += count
        if len(again) < count and self._request.on_tokens is not None:
            news = _from(piece, len(again))
            self._heard = _joined(self._heard, news)
            self._request.on_tokens(news)


def _joined(one: Sampled, other: Sampled) -> Sampled:
    return replace(
        other,
        token_ids=[*one.token_ids, *other.token_ids],
        logprobs=[*one.logprobs, *other.logprobs],
        top_logprobs=[*one.top_logprobs, *other.top_logprobs],
        redrawn=one.redrawn + other.redrawn,
    )


def _from(piece: Sampled, start: int) -> Sampled:
    return replace(
        piece,
        token_ids=piece.token_ids[start:],
        logprobs=piece.logprobs[start:],
        top_logprobs=piece.top_logprobs[start:],
    )
