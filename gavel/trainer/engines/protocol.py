"""The protocol of rollout inference: token ids in, token ids and their log-probs out.

Every sampler used for training implements it, so one endpoint serves them all. Log-probs are those of the distribution
that was sampled from (temperature applied). Where `Shaping` changes it (penalties, biases, the tail cut off), no
learner can compare them with the policy's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gavel.base.errors import GavelError
from gavel.trainer.policy.adapter import Adapter

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Shaping:
    """Sampling parameters with the meaning of OpenAI's API and vLLM; each default changes nothing."""

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])

    def asked(self) -> dict[str, object]:
        """The parameters that are not at their default, by name."""
        plain = asdict(Shaping())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}

    def logits(self, logits: "torch.Tensor", prompt_ids: Sequence[int], token_ids: Sequence[int]) -> "torch.Tensor":
        """The logits with biases and penalties, before the temperature. `[vocabulary]`"""
        import torch

        found = logits.clone()
        if self.repetition_penalty != 1:
            seen = torch.tensor(sorted({*prompt_ids, *token_ids}), device=logits.device)
            values = found[seen]
            found[seen] = torch.where(values > 0, values / self.repetition_penalty, values * self.repetition_penalty)
        for token, count in Counter(token_ids).items():
            found[token] -= self.presence_penalty + count * self.frequency_penalty
        for token, bias in self.logit_bias.items():
            if token < len(found):
                found[token] += bias
        return found

    def logprobs(self, logprobs: "torch.Tensor") -> "torch.Tensor":
        """The log-probs without the tail, after the temperature. `[vocabulary]`"""
        import torch

        kept = torch.ones_like(logprobs, dtype=torch.bool)
        if 0 < self.top_k < len(logprobs):
            kept &= logprobs >= logprobs.topk(self.top_k).values[-1]
        if self.min_p > 0:
            kept &= logprobs.exp() >= self.min_p * logprobs.max().exp()
        if self.top_p < 1:
            ranked, order = logprobs.masked_fill(~kept, -torch.inf).softmax(-1).sort(descending=True, stable=True)
            beyond = ranked.cumsum(-1) - ranked >= self.top_p
            beyond[0] = False
            kept[order[beyond]] = False
        return torch.log_softmax(logprobs.masked_fill(~kept, -torch.inf), -1)


DEADLINE = 600.0
"""Seconds that a publication, a scoring or a request for a single token may take, including its time in the queue."""
_TOKEN_SECONDS = 0.25
"""Timeout per token that a request may sample: slower sampling counts as hung."""


BASE = -1
"""The version by which requests name the base model without an adapter, where an engine serves it."""


def deadline(*max_tokens: int) -> float:
    """Seconds that requests for so many tokens each may take: two and a half hours for a thinking turn of 32,768."""
    return DEADLINE + _TOKEN_SECONDS * max(max_tokens, default=0)


class EngineError(GavelError):
    """The engine cannot serve a request, or has stopped."""


class ContextOverflow(EngineError):
    """A prompt leaves no room for a single token."""


SHORTEN = "Shorten the conversation, or raise max_context."


def closed_error() -> EngineError:
    """The error for requests to an engine that was closed."""
    return EngineError("the engine has been closed", "Register the model again.")


class AdapterGone(EngineError):
    """A request names an adapter that the engine does not keep."""

    def __init__(self, wanted: int, held: Iterable[int]) -> None:
        live = ", ".join(map(str, held)) or "none"
        super().__init__(
            f"the adapter of step {wanted} is not held; there are: {live}",
            "A conversation that takes longer than max_staleness steps cannot be ended: begin it again.",
        )


def check_length(request: "SamplingRequest", max_context: int) -> None:
    """Raises `EngineError` for an empty prompt, and `ContextOverflow` for one that leaves no room."""
    if not len(request.prompt_ids):
        raise EngineError("the prompt is empty")
    if len(request.prompt_ids) >= max_context:
        raise ContextOverflow(
            f"the prompt has {len(request.prompt_ids)} tokens; the maximum context length is {max_context}",
            SHORTEN,
        )


def settle(future: "Future[Any]", outcome: Any) -> None:
    """Gives a future its result, or its exception; one that was cancelled meanwhile stays so."""
    with suppress(InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


OnTokens = Callable[["Sampled"], None]
"""Takes pieces of a reply as they are sampled, whose `finish_reason` says nothing; called in the engine's thread, it
must return at once and raise nothing."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The required form of a reply: JSON of a schema, or a tool call."""

    schema: str
    """A JSON schema, as JSON."""
    opening: tuple[int, ...] = ()
    """The tokens that open a tool call; none where the reply may call none."""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """One turn to sample."""

    prompt_ids: Sequence[int]
    stop_ids: frozenset[int]
    max_tokens: int
    temperature: float
    """0 = the likeliest token; its log-prob is then that of temperature 1."""
    seed: int
    """The same seed and prompt give the same tokens on the same adapter."""
    adapter_version: int | None = None
    """One of the adapters that the engine keeps; None = the live one; `BASE` = none."""
    shaping: Shaping | None = None
    """Sampling from another distribution than the policy's; None = from the policy's."""
    grammar: Grammar | None = None
    """None: the reply may be anything."""
    on_tokens: OnTokens | None = field(default=None, compare=False)
    """Hears all tokens of the reply, in order and before the future is done."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The reply to a request."""

    token_ids: list[int]
    """Including the stop token, if there was one."""
    logprobs: list[float]
    """One for each of `token_ids`, in nats."""
    finish_reason: Literal["stop", "length"]
    adapter_version: int
    redrawn: int = 0
    """Tokens that are not as the policy drew them, since they would not have fitted the grammar."""


class Engine(Protocol):
    """A sampler with one live adapter; it takes requests once one has been published.

    It keeps a given number of the adapters that were published last, for conversations that began with them. Every
    request is sampled with one adapter from its first token to its last.
    """

    @property
    def adapter_version(self) -> int:
        """Version of the live adapter; 0 before there is one."""
        return self.adapter_versions[-1] if self.adapter_versions else 0

    @property
    def adapter_versions(self) -> list[int]:
        """The versions that requests can name, the live one last."""
        ...

    @property
    def serves_base(self) -> bool:
        """Whether requests can name `BASE`."""
        return False

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or has stopped with an error."""
        ...

    @property
    def max_context(self) -> int:
        """Tokens of a prompt and its reply, at most."""
        ...

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        """Queues a request; raises `EngineError`, as `ContextOverflow`, `AdapterGone` and `GrammarError` are, through
        the future.

        Cancelling the future ends the sampling and frees its slot.
        """
        ...

    def publish(self, adapter: Adapter, version: int) -> None:
        """Makes an adapter live: requests submitted after this returns get it; those in flight keep theirs."""
        ...

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of `token_ids[1:]` under the live adapter, at temperature 1."""
        ...

    def release_memory(self) -> AbstractContextManager[None]:
        """Context in which the learner computes: an engine that shares its device releases its memory meanwhile."""
        return nullcontext()

    def cache_growth(self) -> int:
        """Bytes of the learner's device that its caches may still take."""
        return 0

    def close(self) -> None:
        """Fails what is in flight and frees everything; closing again does nothing."""
        ...
