"""Proves that the sampler's adapter is live: sampler and learner give the same log-probs to the same tokens.

Both compute the policy by different code; rounding explains a small gap, and nothing else does. A larger gap raises
`PublishError`, so no rollout is ever sampled by another policy than the one that is being trained.
"""

from collections.abc import Callable

import torch

from gavel.llm.errors import GavelError
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.engines.protocol import DEADLINE, Engine, SamplingRequest

_MAX_TOKENS = 256
_PROMPT_TOKENS = 24
_SAMPLED_TOKENS = 8
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Nats by which one token's log-prob may differ through rounding, by the dtype of the base weights."""

LearnerLogprobs = Callable[..., torch.Tensor]
"""The learner's log-probs of the trained tokens of one or more sequences, computed in one pass. `[T]`"""


class PublishError(GavelError):
    """The sampler does not follow the adapter that was published."""


def publish_gap(engine: Engine, learner_logprobs: LearnerLogprobs, token_ids: list[int], dtype: torch.dtype) -> float:
    """The largest gap in nats between sampler and learner on one sequence.

    Raises `PublishError` for a gap that rounding does not explain.
    """
    ids = token_ids[: min(_MAX_TOKENS, engine.max_context - 1)]  # scoring may need one token of the context itself
    learned = learner_logprobs(_all_trained(ids))
    served = torch.tensor(engine.score(ids), device=learned.device)
    gap = (learned - served).abs().max().item()
    if not gap <= _TOLERANCE[dtype]:
        raise PublishError(
            f"after publishing, sampler and learner differ by {gap:.3g} nats on a token",
            "Register the model again to go on from the last checkpoint. If it fails again, the adapter did not become "
            "live, or its numbers are too large to compute with: lower the learning rate.",
        )
    return gap


def prove_engine(engine: Engine, learner_logprobs: LearnerLogprobs, vocabulary: int, dtype: torch.dtype) -> None:
    """Samples a few tokens as rollouts do, and compares with plain passes of the engine and of the learner.

    Raises `PublishError`: the engine's cache computes something else, its adapter is not the learner's, or the learner
    computes other log-probs when sequences share a prefix.
    """
    prompt = list(range(min(_PROMPT_TOKENS, vocabulary)))
    request = SamplingRequest(prompt, frozenset(), max_tokens=_SAMPLED_TOKENS, temperature=1.0, seed=0)
    sampled = engine.submit(request).result(timeout=DEADLINE)
    plain = engine.score([*prompt, *sampled.token_ids])[-len(sampled.token_ids) :]
    gap = max(abs(one - other) for one, other in zip(sampled.logprobs, plain, strict=True))
    if not gap <= _TOLERANCE[dtype]:
        raise PublishError(
            f"the engine's cache does not fit this base model: its log-probs are off by {gap:.3g} nats",
            "Choose another base model.",
        )
    publish_gap(engine, learner_logprobs, [*prompt, *sampled.token_ids], dtype)
    forked = [*prompt[: len(prompt) // 2], *reversed(prompt[len(prompt) // 2 :])]
    learned = learner_logprobs(_all_trained(prompt), _all_trained(forked))
    scored = torch.tensor([*engine.score(prompt), *engine.score(forked)], device=learned.device)
    gap = (learned - scored).abs().max().item()
    if not gap <= _TOLERANCE[dtype]:
        raise PublishError(
            f"the learner's log-probs of sequences that share a prefix are off by {gap:.3g} nats",
            "Choose another base model: layers of this one see more than their own sequence.",
        )


def _all_trained(ids: list[int]) -> TokenSequence:
    """Every token but the first."""
    return TokenSequence(ids, [False] + [True] * (len(ids) - 1), [0.0] * len(ids), [1.0] * len(ids))
