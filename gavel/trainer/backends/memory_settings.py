"""The settings that bound a run's memory: chosen once, written to the run directory, and kept.

    memory.json    {"gradient_checkpointing": null, "micro_batch_tokens": {"with_checkpointing": 20480, …}, …}

`gradient_checkpointing` null is that of a GPU: in passes over more tokens than fit without it.

A resumed run cuts its batches as it did before, on whatever device. What a call sets itself wins.
"""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, PositiveInt, ValidationError

from gavel.trainer.config import TrainConfig
from gavel.trainer.learner.step_bytes import LEAST_TOKENS, FittedPass, checkpoints_by_default
from gavel.trainer.runs.format_version import check_format_version
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError

FILE = "memory.json"
_BEFORE: dict[str, Any] = {"gradient_checkpointing": False, "micro_batch_tokens": {"without_checkpointing": 16384}}
"""The settings of runs that were begun before they were chosen by measuring."""
_DELETE = (
    "Restore the file, or delete it: the run goes on with micro-batches of 16,384 tokens, or those of "
    "--micro-batch-tokens."
)


class _File(BaseModel, strict=True, extra="ignore"):
    """What is kept."""

    gradient_checkpointing: bool | None
    micro_batch_tokens: dict[Literal["with_checkpointing", "without_checkpointing"], PositiveInt]
    measured: dict[str, Any] = {}


class MemorySettings:
    """Fills in what a `TrainConfig` leaves open."""

    def __init__(self, directory: RunDirectory, device: str, fit: Callable[[bool], FittedPass], *, begun: bool) -> None:
        """`fit` measures, given whether activations are checkpointed. `begun`: whether the run has trained steps.

        Raises `RunDirectoryError` for a file that holds something else.
        """
        self._directory = directory
        self._device = device
        self._fit = fit
        self._begun = begun
        self._described()

    def filled(self, config: TrainConfig) -> TrainConfig:
        """The config with all of them; measures when the run does not know a number of tokens yet."""
        kept = self._kept()
        on, tokens, whole = config.gradient_checkpointing, config.micro_batch_tokens, config.whole_pass_tokens
        if on is None:
            on = kept["gradient_checkpointing"]
        if tokens is None:
            tokens = self._tokens(on is not False)
        if on is None and whole is None:
            fitting = self._tokens(False)
            whole = fitting if fitting > LEAST_TOKENS else 0  # that many may not fit either
        found = {"gradient_checkpointing": on, "micro_batch_tokens": tokens, "whole_pass_tokens": whole}
        return config.model_copy(update=found)

    def _tokens(self, checkpointing: bool) -> int:
        kept = self._kept()
        return kept["micro_batch_tokens"].get(_mode(checkpointing)) or self._measured(kept, checkpointing)

    def _described(self) -> dict[str, Any]:
        try:
            kept = self._directory.description(FILE)
        except RunDirectoryError as error:
            raise RunDirectoryError(error.message, _DELETE) from error
        if kept:
            check_format_version(kept.get("format_version"), str(self._directory.path / FILE))
            try:
                _File.model_validate(kept)
            except ValidationError as error:
                raise RunDirectoryError(
                    f"{self._directory.path / FILE} does not hold the memory settings of a run: {error}", _DELETE
                ) from error
        return kept

    def _kept(self) -> dict[str, Any]:
        kept = self._described()
        if kept:
            return kept
        if self._begun:
            return {**_BEFORE}
        chosen: dict[str, Any] = {
            "gradient_checkpointing": checkpoints_by_default(self._device),
            "micro_batch_tokens": {},
        }
        self._directory.describe(chosen, FILE)  # also when this call sets both: a later one may not, after a restart
        return chosen

    def _measured(self, kept: dict[str, Any], on: bool) -> int:
        fitted = self._fit(on)
        figures = {
            "free_bytes": fitted.free,
            "pass_bytes": round(fitted.need.fixed),
            "pass_bytes_per_token": round(fitted.need.per_token),
        }
        tokens = {**kept["micro_batch_tokens"], _mode(on): fitted.tokens}
        measured = {**kept.get("measured", {}), _mode(on): figures}
        self._directory.describe({**kept, "micro_batch_tokens": tokens, "measured": measured}, FILE)
        return fitted.tokens


def _mode(checkpointing: bool) -> str:
    return "with_checkpointing" if checkpointing else "without_checkpointing"
