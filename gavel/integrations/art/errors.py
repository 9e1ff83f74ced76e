"""The exceptions that ART's scripts catch, settings of ART that have no effect, and parts of it that are not here.

Scripts import at their top what they use after training. So names of parts that Gavel does not have can be imported,
and stop with one sentence when they are used.
"""

import inspect
import sys
import warnings
from types import ModuleType
from typing import Any

from gavel.base.errors import GavelError

ART = __name__.rpartition(".")[0]


class ARTError(Exception):
    """An error with a status code, as ART's servers answer it."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.detail = message
        self.status_code = status_code


class ForbiddenBucketCreationError(ARTError):
    """A bucket that may not be made."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 403)


class UnsupportedLoRADeploymentProviderError(ARTError):
    """A provider that serves no adapters."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class UnsupportedBaseModelDeploymentError(ARTError):
    """A base model on which a provider serves no adapters."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class LoRADeploymentTimedOutError(ARTError):
    """A deployment that took too long."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 504)


class NotInGavelError(GavelError, NotImplementedError):
    """A part of ART that Gavel does not have."""


def absent(owner: object, name: str) -> AttributeError:
    """For an attribute that ART may have: an `AttributeError`, so that `hasattr` says no."""
    return AttributeError(f"{type(owner).__name__.partition('[')[0]}.{name} is not in {ART}; docs/art.md says what is")


class IgnoredSetting(UserWarning):
    """A setting of ART that has no effect in Gavel."""


_warned: set[str] = set()


def ignored(setting: str, why: str) -> None:
    """Warns, the first time in a process, that `setting` has no effect."""
    if setting not in _warned:
        _warned.add(setting)
        warnings.warn(f"{setting} has no effect in Gavel: {why}", IgnoredSetting, stacklevel=_levels_to_the_user())


def _levels_to_the_user() -> int:
    """From the caller of `warnings.warn` to the nearest line that is none of Gavel's."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith("gavel."):
        frame, level = frame.f_back, level + 1
    return level  # this function's own frame stands for the one of what is outside


_TRAIN = "Train with LocalBackend(), or with gavel train."
_DEPLOY = "Use gavel export, and serve the directory with vLLM."
_MEASURE = "Read metrics.jsonl of the run directory."
_CLUSTER = "Run the script on the cluster, with LocalBackend(), or use gavel.SkyPilotBackend with the names of Gavel."
_HERE = "Put LocalBackend() in its place; larger models need a GPU."
_REMEDIES = {
    "api_costs": _MEASURE,
    "cli": "Use the command gavel.",
    "costs": _MEASURE,
    "dev.openai_server": "The endpoint needs no settings.",
    "dev.validate": _TRAIN,
    "distill": _TRAIN,
    "distributed": _TRAIN,
    "guided_completion": "Ask for the wanted form in the prompt, and let the judge rate it.",
    "local.checkpoints": "A run's checkpoints are directories of PEFT adapters.",
    "local.service": _TRAIN,
    "loss": _TRAIN,
    "megatron": _HERE,
    "metrics": _MEASURE,
    "metrics_taxonomy": _MEASURE,
    "preprocessing": _TRAIN,
    "serverless": _HERE,
    "serverless.backend": _HERE,
    "skypilot": _CLUSTER,
    "skypilot.backend": _CLUSTER,
    "test": _TRAIN,
    "tinker": _HERE,
    "tinker_native": _HERE,
    "transformers": _TRAIN,
    "unsloth": _TRAIN,
    "utils.benchmark_rollout": _MEASURE,
    "utils.benchmarking": _MEASURE,
    "utils.benchmarking.charts": _MEASURE,
    "utils.convert_moe_lora": _DEPLOY,
    "utils.deploy_model": _DEPLOY,
    "utils.deployment": _DEPLOY,
    "utils.group_aggregate": _MEASURE,
    "utils.logging": "Use Python's logging.",
    "utils.record_provenance": _MEASURE,
    "utils.s3": "Copy the run directory.",
    "utils.trajectory_logging": "Read trajectories with gavel.TrajectoryStore.",
    "vllm": 'Sample with LocalBackend(engine="vllm").',
    "vllm_runtime": _TRAIN,
    "weight_transfer": _TRAIN,
}
"""What to do instead, by ART's module."""


class Missing:
    """One name of such a module: a call, an attribute of it and an item raise `NotInGavelError`."""

    def __init__(self, name: str, remedy: str) -> None:
        self._error = NotInGavelError(f"Gavel has no {name}", remedy)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else self._error

    def __getitem__(self, _: object) -> Any:
        raise self._error


class _MissingModule(ModuleType):
    def __init__(self, part: str) -> None:
        super().__init__(f"{ART}.{part}", "A part of ART that Gavel does not have.")
        self.__path__ = []
        self._part = part

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"art.{self._part}.{name}", _REMEDIES[self._part])


def add_missing_modules() -> None:
    """Makes the parts that Gavel does not have importable."""
    for part in _REMEDIES:
        sys.modules.setdefault(f"{ART}.{part}", _MissingModule(part))


def add_aliases(module: str, *names: str) -> None:
    """Lets what ART defines in modules of their own be imported from there: `module.name` is `module` itself."""
    for name in names:
        sys.modules[f"{module}.{name}"] = sys.modules[module]
