"""The exceptions that ART's scripts catch, ART's settings without effect, and its missing parts.

Scripts import at their top names that they use after training. So names of missing parts can be imported, and raise a
one-sentence error when they are used.
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

    code = 500

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.detail = message
        self.status_code = self.code if status_code is None else status_code


class ForbiddenBucketCreationError(ARTError):
    code = 403


class UnsupportedLoRADeploymentProviderError(ARTError):
    code = 400


class UnsupportedBaseModelDeploymentError(ARTError):
    code = 400


class LoRADeploymentTimedOutError(ARTError):
    code = 504


class NotInGavelError(GavelError, NotImplementedError):
    """A part of ART that Gavel does not have."""


def absent(owner: object, name: str) -> AttributeError:
    """The error for a missing attribute of ART: an `AttributeError`, so that `hasattr` returns False."""
    return AttributeError(f"{type(owner).__name__.partition('[')[0]}.{name} is not in {ART}; docs/art.md says what is")


class IgnoredSetting(UserWarning):
    """A setting of ART that has no effect in Gavel."""


_warned: set[str] = set()


def ignored(setting: str, why: str) -> None:
    """Warns once per process that `setting` has no effect."""
    if setting not in _warned:
        _warned.add(setting)
        warnings.warn(f"{setting} has no effect in Gavel: {why}", IgnoredSetting, stacklevel=_levels_to_the_user())


def _levels_to_the_user() -> int:
    """Frames from the caller of `warnings.warn` to the nearest frame outside Gavel."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith("gavel."):
        frame, level = frame.f_back, level + 1
    return level  # this function's own frame accounts for the outer one


_MISSING = {
    "Train with LocalBackend(), or with gavel train; larger models need a GPU.": """
        dev.validate distill distributed local.checkpoints local.service loss megatron preprocessing serverless
        serverless.backend test tinker tinker_native transformers unsloth vllm vllm_runtime weight_transfer""",
    "Use gavel export, and serve the directory with vLLM.": """
        utils.convert_moe_lora utils.deploy_model utils.deployment""",
    "Read metrics.jsonl of the run directory, or trajectories with gavel.TrajectoryStore.": """
        api_costs costs metrics metrics_taxonomy utils.benchmark_rollout utils.benchmarking utils.benchmarking.charts
        utils.group_aggregate utils.record_provenance utils.s3 utils.trajectory_logging""",
    "Run the script on the cluster, with LocalBackend(), or use gavel.SkyPilotBackend with the names of Gavel.": """
        skypilot skypilot.backend""",
    "docs/art.md says what stands in its place.": """
        cli dev.openai_server guided_completion utils.log_http_errors utils.logging""",
}
"""ART's modules that Gavel lacks, by the alternative."""


class MissingName:
    """A name in such a module: calling it, its attributes and its items raise `NotInGavelError`."""

    def __init__(self, name: str, remedy: str) -> None:
        self._error = NotInGavelError(f"Gavel has no {name}", remedy)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else self._error

    __getitem__ = __call__


class _MissingModule(ModuleType):
    def __init__(self, part: str, remedy: str) -> None:
        super().__init__(f"{ART}.{part}", "A part of ART that Gavel does not have.")
        self.__path__ = []
        self._part, self._remedy = part, remedy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingName(f"art.{self._part}.{name}", self._remedy)


def add_missing_modules() -> None:
    """Makes ART's missing parts importable."""
    for remedy, parts in _MISSING.items():
        for part in parts.split():
            sys.modules.setdefault(f"{ART}.{part}", _MissingModule(part, remedy))


def add_aliases(module: str, *names: str) -> None:
    """Makes ART's names importable from their own modules: `module.name` is `module` itself."""
    for name in names:
        sys.modules[f"{module}.{name}"] = sys.modules[module]
