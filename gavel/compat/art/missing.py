"""Parts of ART that Gavel does not have: they can be imported, and their names stop with one sentence when used.

Scripts import at their top what they use after training, so they train first. The modules are made by a finder that
answers for these names under `gavel.compat.art` alone.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gavel.compat.art.errors import NotInGavelError

_HERE = "gavel.compat.art."
_TRAIN = "Train with LocalBackend(), or with gavel train."
_DEPLOY = "Use gavel export, and serve the directory with vLLM."
_MEASURE = "Read metrics.jsonl of the run directory."
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
    "metrics": _MEASURE,
    "metrics_taxonomy": _MEASURE,
    "preprocessing": _TRAIN,
    "test": _TRAIN,
    "transformers": _TRAIN,
    "unsloth": _TRAIN,
    "utils.benchmark_rollout": _MEASURE,
    "utils.benchmarking": _MEASURE,
    "utils.convert_moe_lora": _DEPLOY,
    "utils.deploy_model": _DEPLOY,
    "utils.deployment": _DEPLOY,
    "utils.group_aggregate": _MEASURE,
    "utils.logging": "Use Python's logging.",
    "utils.old_benchmarking": _MEASURE,
    "utils.record_provenance": _MEASURE,
    "utils.s3": "Copy the run directory.",
    "utils.trajectory_logging": "Read trajectories with gavel.TrajectoryStore.",
    "vllm": 'Sample with LocalBackend(engine="vllm").',
    "vllm_runtime": _TRAIN,
    "weight_transfer": _TRAIN,
}
"""What to do instead, by ART's module; of a package it holds for the modules in it too."""


class Missing:
    """One name of such a module: a call, an attribute of it and an item raise `NotInGavelError`."""

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._error()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error()

    def __getitem__(self, _: object) -> Any:
        raise self._error()

    def _error(self) -> NotInGavelError:
        return NotInGavelError(f"Gavel has no {self._name}", self._remedy)


class _MissingModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = self.__name__.removeprefix(_HERE)
        return Missing(f"art.{part}.{name}", _remedy(part) or "")


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_HERE) or _remedy(fullname.removeprefix(_HERE)) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _MissingModule(spec.name, "A part of ART that Gavel does not have.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: its names are made when they are asked for."""


class _LastFinder(MetaPathFinder):
    """Says where to look for a name that nothing answers for."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        name = fullname.removeprefix(_HERE)
        if fullname.startswith(_HERE) and not name.rpartition(".")[2].startswith("_"):
            # Without its `name`, by which `from … import …` would take it for a common one, and say less.
            raise ModuleNotFoundError(f"art.{name} is not in gavel.compat.art; docs/art.md says what is")


def _remedy(part: str) -> str | None:
    """None for what is no such part."""
    names = part.split(".")
    return next((found for end in range(len(names), 0, -1) if (found := _REMEDIES.get(".".join(names[:end])))), None)


def install() -> None:
    """Makes the parts importable; installing them again does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # before a folder that an earlier version left behind
        sys.meta_path.append(_LastFinder())
