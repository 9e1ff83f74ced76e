"""Decision servers on loopback, each with the wire of a provider as LiteLLM speaks it.

A fake answers a score question about a trajectory by what its transcript says ("quality 7"): the level has most of the
probability, its neighbours the rest. `spoil` changes the answer to a question by its name.
"""

import re
from collections.abc import Callable
from typing import Any

from tests.fake_server import Answer, Call, FakeServer

Spoil = Callable[[str, list[float]], list[float] | None]
"""(label, probabilities) -> other probabilities, or None for a refusal."""


class DecisionServer(FakeServer):
    """`wire`: "openai", "hosted_vllm", "openrouter" or "cloudflare"."""

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        """Path, body and headers."""
        self.failures: list[tuple[int, dict[str, Any]]] = []
        """Answered first."""
        self.spoil: Spoil = lambda label, probabilities: probabilities
        self.bias = 0.0
        """Levels that the first shown gains over the last."""
        super().__init__()

    def respond(self, call: Call) -> Answer:
        self.requests.append((call.path, call.json, call.headers))
        status, body = self.failures.pop(0) if self.failures else (200, self.answer(call.json))
        return Answer(body, status, {"Retry-After": "0"})

    @property
    def model(self) -> str:
        return f"{self.wire}/decider-1"

    @property
    def path(self) -> str:
        return {
            "openai": "/v1/decisions",
            "hosted_vllm": "/v1/systemone",
            "openrouter": "/alpha/decisions",
            "cloudflare": "/ai/run/@cf/cloudflare/decider-1",
        }[self.wire]

    @property
    def params(self) -> dict[str, Any]:
        return {"api_base": self.url, "api_key": "none"}

    def shown(self, body: dict[str, Any]) -> str:
        """The text that a request shows."""
        if self.wire == "openai":
            return "\n\n".join(message["content"] for message in body["input"])
        return body["state"]

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self.shown(body)
        if self.wire == "openai":
            asked = [(q["name"], [level["label"] for level in q["levels"]]) for q in body["questions"]]
        else:
            asked = [(name, q["criteria"]) for name, q in body["questions"].items()]
        given = {name: self._probabilities(name, len(levels), text) for name, levels in asked}
        if self.wire == "openai":
            return {
                "id": "dec_1",
                "model": "decider-1-2026",
                "answers": [_openai(name, levels, given[name]) for name, levels in asked],
                "usage": {"input_tokens": 900, "output_tokens": 3, "total_tokens": 903},
            }
        answers = {name: _systemone(levels, p) for name, levels in asked if (p := given[name]) is not None}
        usage: dict[str, Any] = {"input_tokens": 900, "output_tokens": 3}
        if self.wire == "openrouter":
            usage["cost"] = 0.00025
        response = {"model": "decider-1-2026", "answers": answers, "usage": usage}
        return {"result": response, "success": True} if self.wire == "cloudflare" else response

    def _probabilities(self, name: str, levels: int, text: str) -> list[float] | None:
        pieces = re.split(r"^¦\w+ trajectory (\w+)$", text, flags=re.MULTILINE)
        quality = {
            label: re.search(r"quality (\d+)", piece) for label, piece in zip(pieces[1::2], pieces[2::2], strict=True)
        }
        labels = list(quality)
        found = quality.get(label := next((label for label in labels if name.startswith(label)), ""))
        best = int(found[1]) if found else 0
        if self.bias and len(labels) > 1:
            best = round(best + self.bias * (0.5 - labels.index(label) / (len(labels) - 1)))
        probabilities = [0.0] * levels
        for level, share in ((best - 1, 0.25), (best, 0.5), (best + 1, 0.25)):
            probabilities[min(max(level, 0), levels - 1)] += share
        return self.spoil(label, probabilities)


def _openai(name: str, levels: list[str], probabilities: list[float] | None) -> dict[str, Any]:
    if probabilities is None:
        return {"type": "refusal", "name": name}
    shares = [
        {"value": value, "label": label, "probability": p}
        for value, (label, p) in enumerate(zip(levels, probabilities, strict=False))
    ]
    return {**_score(probabilities), "name": name, "probabilities": shares}


def _systemone(levels: list[str], probabilities: list[float]) -> dict[str, Any]:
    legend, shares = ({str(value): each for value, each in enumerate(of)} for of in (levels, probabilities))
    return {**_score(probabilities), "legend": legend, "probabilities": shares}


def _score(probabilities: list[float]) -> dict[str, Any]:
    expected = sum(level * p for level, p in enumerate(probabilities))
    return {"type": "score", "score": expected, "confidence": max(probabilities)}
