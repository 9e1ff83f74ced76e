"""Simulated judges that answer with distributions: a decision model, and a model whose digits have log-probabilities.

Both read like the simulated judge of `gavel.judge.offline.simulated`, with its biases. Each score is the middle of a
distribution over ten levels, normal with a standard deviation of `WIDTH` levels. How much of a judge's noise is luck in
sampling its words, which a distribution does not have, is not known: `sampling` is that share of the noise's variance.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from gavel.judge.offline.simulated import Bias, Latent, SimulatedJudge
from gavel.judge.prompt.token_count import count_tokens
from gavel.llm.types import Message, text_of

LEVELS = 10
WIDTH = 1.0
Form = Literal["groupwise", "decisions", "readout"]


class TokenCountingJudge:
    """A simulated judge for one mode, which counts the tokens of its prompts and schemas."""

    def __init__(
        self, members: Mapping[str, Latent], bias: Bias, form: Form, sampling: float = 0.0, seed: int = 0
    ) -> None:
        if form != "groupwise":
            bias = replace(bias, step=0.0, noise=bias.noise * math.sqrt(1 - sampling))
        self._judge = SimulatedJudge(members, bias, name=form, seed=seed)
        self._form: Form = form
        self.tokens = 0
        self.__qualname__ = form

    async def __call__(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> str:
        self.tokens += count_tokens("\n".join([*map(text_of, messages), json.dumps(schema)]))
        words = await self._judge(messages, schema)
        if self._form == "groupwise":
            return words
        scores = {entry["trajectory_id"]: entry["score"] for entry in json.loads(words)["scores"]}
        distributions = {label: distribution(score) for label, score in scores.items()}
        if self._form == "decisions":
            return json.dumps({"answers": [{"name": n, "probabilities": p} for n, p in distributions.items()]})
        return json.dumps(_with_tokens(distributions))


def distribution(score: float) -> list[float]:
    """Over the levels, around a score from 0 to 1."""
    weights = [math.exp(-(((level - score * (LEVELS - 1)) / WIDTH) ** 2) / 2) for level in range(LEVELS)]
    return [weight / math.fsum(weights) for weight in weights]


def _with_tokens(distributions: Mapping[str, list[float]]) -> dict[str, Any]:
    """A reply as `gavel.llm.response` writes it: the likeliest digits, with the alternatives in their places."""
    tokens: list[tuple[str, list[tuple[str, float]]]] = []
    for number, (label, probabilities) in enumerate(distributions.items()):
        before = f'{", " if number else "{"}"{label}":'
        likeliest = str(max(range(LEVELS), key=probabilities.__getitem__))
        tokens += [(before, []), (likeliest, [(str(n), math.log(p)) for n, p in enumerate(probabilities)])]
    tokens.append(("}", []))
    return {"text": "".join(token for token, _ in tokens), "tokens": tokens}
