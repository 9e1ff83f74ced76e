"""A question to a model: everything that its reply depends on, and the key that replies are stored under."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gavel.llm.errors import CassetteError
from gavel.llm.types import Message, Schema

_PRIVATE = re.compile(r"(^|_)(key|key_id|token|secret|password|credentials?|headers|client)$")
"""Parameters that identify the caller; they are neither part of the key nor stored."""


@dataclass(frozen=True)
class Question:
    """A request to a model: everything that its reply depends on."""

    model: str
    params: Mapping[str, Any]
    schema: Schema
    messages: Sequence[Message]

    @cached_property
    def parts(self) -> dict[str, str]:
        """Canonical JSON of each part. Raises `CassetteError` for a parameter that JSON cannot hold."""
        try:
            return {
                "model": self.model,
                "params": _canonical(self.public_params),
                "schema": _canonical(self.schema),
                "messages": _canonical(self.messages),
            }
        except (TypeError, ValueError) as error:
            raise CassetteError(
                f"the question to {self.model} cannot be stored: {error}.",
                "Give the model parameters that JSON can hold, or no cassette.",
            ) from error

    @property
    def public_params(self) -> dict[str, Any]:
        """The parameters without those that identify the caller."""
        return {name: value for name, value in self.params.items() if not _PRIVATE.search(name)}

    @cached_property
    def key(self) -> str:
        """64 hexadecimal digits."""
        return _hash(_canonical(self.parts))

    @cached_property
    def messages_key(self) -> str:
        return _hash(self.parts["messages"])


def differences_from_nearest(question: Question, stored: Sequence[Mapping[str, str]]) -> str:
    """How the question differs from the most similar of the `stored` ones (parts as in `Question.parts`)."""
    parts = question.parts

    def likeness(other: Mapping[str, str]) -> tuple[int, int]:
        return sum(other[name] == parts[name] for name in parts), _common_prefix(other["messages"], parts["messages"])

    nearest = max(stored, key=likeness)
    return "; ".join(filter(None, (_difference(name, nearest[name], parts[name]) for name in parts)))


def _difference(name: str, stored: str, asked: str) -> str:
    if stored == asked:
        return ""
    start = max(0, _common_prefix(stored, asked) - 20)
    return f"the {name} (on file …{stored[start : start + 60]}…, asked …{asked[start : start + 60]}…)"


def _common_prefix(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
