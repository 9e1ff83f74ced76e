"""Proves every sampler of a run: the one engine, or each server of a pool by itself.

A server that serves another adapter than its neighbours would fill a part of each group with another policy's replies,
which no average shows. One that comes back to a pool is proven in full before it takes a request.

Proves before training that an engine computes a base model as the learner does, in the ways that rollouts use it.

    A  [prompt]         -> 16 tokens, [+ observation] -> 16 tokens
    B  [half of it, …]  -> 16 tokens, [+ observation] -> 16 tokens      both at once, of different lengths

A cache that one conversation fills and the other reads, a state that lies in the model, or one that is dropped between
two turns changes the log-probs of what is sampled; each turn is compared by itself. The conversations begin alike, so
the learner is proven on sequences that share a prefix by the same tokens. Nothing is scored before all is sampled:
some servers cannot do both at once.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gavel.trainer.backends.publish_evidence import Scores, verdict
from gavel.trainer.backends.publish_proof import (
    FLOOR,
    LearnerLogprobs,
    PublishCheck,
    PublishError,
    all_trained,
    not_live,
)
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.engines.engine_pool import EnginePool
from gavel.trainer.engines.protocol import DEADLINE, Engine, EngineError, Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import Policy

_PROMPT_TOKENS, _SAMPLED_TOKENS, _OBSERVED_TOKENS = 24, 16, 4
"""Of each conversation and turn, where the context has room for twice as many."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Nats per token by which the computation of a base model may differ, by the dtype of its weights."""
ANOTHER_ENGINE = "Sample it with vLLM (--engine vllm, or LocalBackend(engine='vllm')), or choose another base model."


@dataclass(slots=True)
class _Conversation:
    token_ids: list[int]
    sampled: list[tuple[int, list[float]]]
    """Of each turn: where it begins, and its log-probs at the engine."""


def prove_engine(
    engine: Engine,
    learner_logprobs: LearnerLogprobs,
    vocabulary: int,
    dtype: torch.dtype,
    base_logprobs: LearnerLogprobs | None = None,
) -> None:
    """Samples two turns of two conversations, and compares with plain passes of the engine and of the learner.

    `base_logprobs`: those without the adapter, for one that is not new; a sampler without it is then found, too.
    Raises `PublishError`: the engine's cache computes something else, its adapter is not the learner's, or the learner
    computes other log-probs when sequences share a prefix; and `EngineError`.
    """
    tolerance = _TOLERANCE[dtype]
    conversations = _conversations(engine, vocabulary)
    served = [torch.tensor(engine.score(each.token_ids)) for each in conversations]
    for turn, where in enumerate(("", " in the second turn of a conversation")):
        gap = max(_sampling_gap(each, plain, turn) for each, plain in zip(conversations, served, strict=True))
        if not gap <= tolerance:
            raise PublishError(
                f"the engine's cache does not fit this base model: its log-probs are off by {gap:.3g} nats{where}",
                ANOTHER_ENGINE,
            )
    whole = [all_trained(each.token_ids) for each in conversations]
    alone = [learner_logprobs(each).float() for each in whole]
    served = [each.to(alone[0].device) for each in served]
    gap = max(_typical(ours - theirs) for ours, theirs in zip(alone, served, strict=True))
    if not gap <= tolerance:
        raise not_live(f"sampler and learner differ by {gap:.3g} nats a token")
    if base_logprobs is not None:
        base = torch.cat([base_logprobs(each).float() for each in whole])
        before = Scores(base, base)
        if verdict(Scores(torch.cat(alone), torch.cat(served)), before, before, 0.0, FLOOR[dtype]) == "earlier":
            raise not_live("the sampler serves the base model without the adapter")
    gap = _typical(learner_logprobs(*whole).float() - torch.cat(served))
    if not gap <= tolerance:
        raise PublishError(
            f"the learner's log-probs of sequences that share a prefix are off by {gap:.3g} nats",
            "Choose another base model: layers of this one see more than their own sequence.",
        )


def _conversations(engine: Engine, vocabulary: int) -> list[_Conversation]:
    room = engine.max_context
    prompt = list(range(min(_PROMPT_TOKENS, vocabulary, max(2, room // 4))))
    half = len(prompt) // 2
    found = [_Conversation(ids, []) for ids in (prompt, [*prompt[:half], *reversed(prompt[half:])][: -half // 2])]
    for turn in range(2):
        asked = [
            SamplingRequest(
                each.token_ids, frozenset(), max(1, min(_SAMPLED_TOKENS, room // 8)), temperature=1.0, seed=2 * turn + n
            )
            for n, each in enumerate(found)
        ]
        for each, sampled in zip(found, _sample(engine, asked), strict=True):
            each.sampled.append((len(each.token_ids), sampled.logprobs))
            each.token_ids = [*each.token_ids, *sampled.token_ids]
            if not turn:
                each.token_ids += prompt[1 : 1 + min(_OBSERVED_TOKENS, room // 8)]
    return found


def _sample(engine: Engine, asked: Sequence[SamplingRequest]) -> list[Sampled]:
    """All at once."""
    futures = [engine.submit(request) for request in asked]
    try:
        return [future.result(timeout=DEADLINE) for future in futures]
    except TimeoutError as error:
        raise EngineError(f"the engine did not sample a few tokens within {DEADLINE:.0f} s") from error


def _sampling_gap(conversation: _Conversation, plain: torch.Tensor, turn: int) -> float:
    """`plain` are log-probs of the tokens from the second on."""
    begin, logprobs = conversation.sampled[turn]
    return _typical(torch.tensor(logprobs) - plain[begin - 1 :][: len(logprobs)])


def _typical(gaps: torch.Tensor) -> float:
    """The root mean square: a single token that is routed or rounded otherwise weighs little."""
    return gaps.square().mean().sqrt().item()


logger = logging.getLogger(__name__)


class SamplerProof:
    """Compares each sampler with the learner when it joins, and before and after every publication."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        learner_logprobs: LearnerLogprobs,
        base_logprobs: LearnerLogprobs,
        *,
        adapted: bool,
    ) -> None:
        """`base_logprobs`: without the adapter; `adapted`: whether the adapter of now is not a new one, which gives
        the same. Raises `PublishError`, and `EngineError`."""
        self._engine = engine
        self._policy = policy
        self._logprobs = learner_logprobs
        self._base = base_logprobs
        self._checks: dict[Engine, PublishCheck] = {
            sampler: self._proven(sampler, adapted)
            for sampler in (engine.serving if isinstance(engine, EnginePool) else [engine])
        }

    def before(self, sequences: Sequence[TrainedSequence]) -> None:
        """To be called before the learner changes the adapter that is live. `sequences` are what it will train."""
        for check in self._checks.values():
            check.before(sequences)

    def after(self) -> dict[str, float]:
        """To be called after the publication of what was learned; the metrics of `PublishCheck.after`, of the worst
        sampler. Raises `PublishError`, and `EngineError` when no sampler is left."""
        if not isinstance(self._engine, EnginePool):
            return self._checks[self._engine].after()
        found: list[dict[str, float]] = []
        for sampler in self._engine.serving:
            try:
                found.append(self._checks[sampler].after())
            except EngineError as error:
                if not self._engine.leave_out(sampler, error):
                    raise
            except PublishError as error:
                raise PublishError(f"at {sampler.address}: {error.message}", error.remedy) from error
        told = [metrics for metrics in found if metrics]
        worst = {"publish_proven": min}
        return {name: worst.get(name, max)(each[name] for each in told) for name in (told[0] if told else ())}

    def admit_returned(self) -> dict[str, float]:
        """Takes back the samplers that came back and have the live adapter, once that is proven; the pool's counts of
        the step. Raises `EngineError` when no sampler is left."""
        if not isinstance(self._engine, EnginePool):
            return {}
        for sampler in self._engine.returned:
            try:
                check = self._proven(sampler, adapted=True)
            except (PublishError, EngineError) as error:
                self._engine.leave_out(sampler, error)
            else:
                self._checks[sampler] = check
                self._engine.admit(sampler)
        self._checks = {sampler: self._checks[sampler] for sampler in self._engine.serving}
        return self._engine.take_counts()

    def _proven(self, sampler: Engine, adapted: bool) -> PublishCheck:
        policy = self._policy
        try:
            prove_engine(sampler, self._logprobs, policy.vocabulary, policy.dtype, self._base if adapted else None)
        except EngineError as error:
            if not isinstance(sampler, TransformersEngine):
                raise  # a server may be well again in a moment
            raise PublishError(
                f"the embedded engine cannot sample this base model: {error.message}", ANOTHER_ENGINE
            ) from error
        return PublishCheck(sampler, policy, self._logprobs)
