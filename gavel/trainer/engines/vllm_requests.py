"""What vLLM's completions endpoint is asked for, so that it samples from the policy's distribution and no other.

A reply that must fit a grammar is sampled freely first, and kept if it fits: then it is the policy's own. Else vLLM
samples it once more under the grammar.
"""

import json
from typing import Any

from gavel.trainer.engines.grammar import Constraint
from gavel.trainer.engines.protocol import Grammar, Sampled, SamplingRequest

PLAIN = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "logprobs": 0,
    "return_token_ids": True,
}
_SEEDS = 2**63


class Misfit(Exception):
    """A reply does not fit its grammar."""


def sampling_body(request: SamplingRequest, room: int) -> dict[str, Any]:
    """`room`: tokens that the context has left."""
    return {
        **PLAIN,
        "prompt": list(request.prompt_ids),
        "max_tokens": min(request.max_tokens, room),
        "temperature": request.temperature,
        "seed": request.seed % _SEEDS,
        "stop_token_ids": sorted(request.stop_ids),
        "logprobs": request.top_logprobs,
        "return_tokens_as_token_ids": request.top_logprobs > 0,
        **(request.shaping.asked() if request.shaping else {}),
    }


def structured(grammar: Grammar) -> dict[str, Any]:
    """What is added to a body whose reply must fit."""
    if grammar.call:
        return {"structured_outputs": {"grammar": grammar.call}}
    return {"structured_outputs": {"json": json.loads(grammar.schema)}}


class Fitting:
    """Hears a reply, and raises `Misfit` with the first token that does not fit."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    def __call__(self, piece: Sampled) -> None:
        if not all(map(self._constraint.take, piece.token_ids)):
            raise Misfit
