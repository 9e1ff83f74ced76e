"""Proves every sampler of a run: the one engine, or each server of a pool by itself.

A server that serves another adapter than its neighbours would fill a part of each group with another policy's replies,
which no average shows. One that comes back to a pool is proven in full before it takes a request.
"""

import logging
from collections.abc import Sequence

from gavel.trainer.backends.engine_proof import ANOTHER_ENGINE, prove_engine
from gavel.trainer.backends.publish_proof import LearnerLogprobs, PublishCheck, PublishError
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.engines.engine_pool import EnginePool
from gavel.trainer.engines.protocol import Engine, EngineError
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import Policy

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
