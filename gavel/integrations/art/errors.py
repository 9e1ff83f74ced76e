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
    """An error of ART's servers. Scripts name it and its kinds in `except`; nothing here raises one."""


ForbiddenBucketCreationError = UnsupportedLoRADeploymentProviderError = ARTError
UnsupportedBaseModelDeploymentError = LoRADeploymentTimedOutError = ARTError


class NotInGavelError(GavelError, NotImplementedError):
    """A part of ART that Gavel does not have."""


def absent(owner: object, name: str) -> AttributeError:
    """The error for a missing attribute of ART: an `AttributeError`, so that `hasattr` returns False."""
    return AttributeError(f"{type(owner).__name__.partition('[')[0]}.{name} is not in {ART}; docs/art.md says what is")


class IgnoredSetting(UserWarning):
    """A setting of ART that has no effect in Gavel."""


_warned: set[str] = set()


def ignored(setting: str, why: str) -> None:
    """Warns once per process, at the user's own line, that `setting` has no effect."""
    if setting in _warned:
        return
    _warned.add(setting)
    frame, level = inspect.currentframe(), 1
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith("gavel."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{setting} has no effect in Gavel: {why}", IgnoredSetting, stacklevel=level)


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


class _Missing(ModuleType):
    """Such a module, or a name in it: calls and subscripts raise `NotInGavelError`."""

    def __init__(self, part: str, remedy: str) -> None:
        super().__init__(f"{ART}.{part}", "A part of ART that Gavel does not have.")
        self.__path__ = []
        self._part, self._remedy = part, remedy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._part}.{name}", self._remedy)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotInGavelError(f"Gavel has no art.{self._part}", self._remedy)

    __getitem__ = __call__


def add_missing_modules() -> None:
    """Makes ART's missing parts importable."""
    for remedy, parts in _MISSING.items():
        for part in parts.split():
            sys.modules.setdefault(f"{ART}.{part}", _Missing(part, remedy))


def add_aliases(module: str, *names: str) -> None:
    """Makes ART's names importable from their own modules: `module.name` is `module` itself."""
    for name in names:
        sys.modules[f"{module}.{name}"] = sys.modules[module]
