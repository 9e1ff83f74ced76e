"""Who judges, and with what weight."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gavel.judge.errors import JudgeError
from gavel.llm.types import ModelCallable


@dataclass(frozen=True, slots=True)
class Juror:
    """One judge model of a jury."""

    model: str | ModelCallable | Sequence[str | ModelCallable]
    """A LiteLLM id, an alias ("stand-in", "constant"), or an async callable. Of several, the first is asked, and
    each of the others when the one before it cannot be used."""
    weight: float = 1.0
    """Of each of its votes."""
    orders: int | None = None
    """Calls for a group, each with another order; None = as the judge says."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Extra LiteLLM parameters, such as `temperature` or `api_base`, for each of its models."""
    context: int | None = None
    """Tokens of prompt and reply that its models have room for; None = as LiteLLM's table says, or 128,000."""

    @property
    def models(self) -> tuple[str | ModelCallable, ...]:
        """In the order of asking."""
        if isinstance(self.model, Sequence) and not isinstance(self.model, str):
            return tuple(self.model)
        return (self.model,)

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise JudgeError(f"a juror's weight must be above 0 and finite, not {self.weight}.")
        if not self.models:
            raise JudgeError("a juror needs a model.")
        if self.context is not None and self.context < 1:
            raise JudgeError(f"a juror's context is a number of tokens above 0, not {self.context}.")
        if self.orders is not None and self.orders < 1:
            raise JudgeError(f"a juror needs at least 1 order, not {self.orders}.")


Models = str | ModelCallable | Juror | Sequence["str | ModelCallable | Juror"]


def jury(models: Models | None) -> tuple[Juror, ...]:
    """The jurors that `models` names; None stands for `GAVEL_JUDGE_MODEL`.

    Raises `JudgeError` when nobody is named.
    """
    if models is None:
        models = os.environ.get("GAVEL_JUDGE_MODEL", "")
    members = list(models) if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    jurors = tuple(member if isinstance(member, Juror) else Juror(member) for member in members if member)
    if not jurors:
        raise JudgeError(
            "no judge model is named.",
            "Set GAVEL_JUDGE_MODEL (in .env, say), or name one: Judge('openai/o3'), --judge stand-in.",
        )
    return jurors
