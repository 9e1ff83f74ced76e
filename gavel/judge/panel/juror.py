"""Jurors: the judge models of a judge, with their weights and settings.

Judge([Juror("openai/gpt-5-mini", weight=2), "ollama/qwen3"])        two jurors, of weights 2 and 1
"""

import inspect
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict

from gavel.judge.errors import JudgeError
from gavel.llm.cassette import public_params
from gavel.llm.types import ModelCallable


@dataclass(frozen=True, slots=True)
class Juror:
    """One judge model of a jury."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str | ModelCallable | Sequence[str | ModelCallable]
    """A LiteLLM id, an alias ("stand-in", "constant"), or a callable. Of a sequence, the first is asked; the
    others are fallbacks, in order."""
    weight: float = 1.0
    """Weight of each of its votes."""
    orders: int | None = None
    """Calls per group, each with another order; None = as set for the judge."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Extra LiteLLM parameters, such as `temperature` or `api_base`, for each of its models."""
    context: int | None = None
    """Context length of its models, in tokens; None = as LiteLLM's table says, or 128,000."""

    @property
    def models(self) -> tuple[str | ModelCallable, ...]:
        """The model and its fallbacks, in the order of asking."""
        if isinstance(self.model, str) or callable(self.model):
            return (self.model,)
        return tuple(self.model)

    @property
    def public_params(self) -> dict[str, Any]:
        """The parameters that identify the judge: `temperature`, but neither `api_key` nor `api_base`, which changes
        when a server moves."""
        return {name: value for name, value in public_params(self.params).items() if name not in _PLACE}

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise JudgeError(f"a juror's weight must be above 0 and finite, not {self.weight}.")
        if not self.models:
            raise JudgeError("a juror needs a model.")
        for model in self.models:
            if not isinstance(model, str):
                _check_parameters(model)
        if self.context is not None and self.context < 1:
            raise JudgeError(f"a juror's context is a number of tokens above 0, not {self.context}.")
        if self.orders is not None and self.orders < 1:
            raise JudgeError(f"a juror needs at least 1 order, not {self.orders}.")


_PLACE = {"api_base", "base_url", "api_version", "timeout"}
"""Parameters that say where a model is asked."""


def _check_parameters(model: ModelCallable) -> None:
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):  # of a function that is not written in Python, perhaps
        return
    try:
        signature.bind([], {})
    except TypeError as error:
        name = getattr(model, "__qualname__", type(model).__name__)
        raise JudgeError(
            f"the judge {name} takes {signature}, and would be called with messages and schema: {error}.",
            "Write it as async def judge(messages, schema) -> str.",
        ) from error


Models = str | ModelCallable | Juror | Sequence["str | ModelCallable | Juror"]


def jury(models: Models | None) -> tuple[Juror, ...]:
    """The jurors that `models` names; None stands for `GAVEL_JUDGE_MODEL`.

    Raises `JudgeError` when no model is named.
    """
    if models is None:
        models = os.environ.get("GAVEL_JUDGE_MODEL", "")
    members = [models] if isinstance(models, str | Juror) or callable(models) else models
    if not isinstance(members, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise JudgeError(f"{members!r:.80} names no judge model.", "Give a LiteLLM id, an async function, or a list.")
    jurors = tuple(member if isinstance(member, Juror) else Juror(member) for member in members if member)
    if not jurors:
        raise JudgeError(
            "no judge model is named.",
            "Set GAVEL_JUDGE_MODEL (in .env, say), or name one: Judge('openai/gpt-5-mini'), --judge stand-in.",
        )
    return jurors
