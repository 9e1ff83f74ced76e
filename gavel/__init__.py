"""Gavel: an LLM judge as the reward, and a GRPO LoRA trainer for agents that use tools.

This is the one import that users write. A name is loaded from its floor on first use, so that `import gavel` itself
loads no model library, and a script that only judges never loads torch.
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gavel.cli import run
    from judge.agreement import agreement
    from judge.anchors import Anchor
    from judge.budget import Budget
    from judge.cassette import Cassette
    from judge.errors import JudgeError
    from judge.judge import Judge
    from judge.juror import Juror
    from judge.reliability import judge_vs_judge
    from judge.rubric import Criterion, Rubric
    from judge.ruler import ruler, ruler_score_group
    from judge.shaping import Shaping, shape_group
    from scenarios.errors import GavelError
    from scenarios.gather import gather_trajectories, gather_trajectory_groups
    from scenarios.judgement import GroupJudgement, Judgement
    from scenarios.rollout import rollout
    from scenarios.scenario import Scenario, find_scenario
    from scenarios.store import TrajectoryStore
    from scenarios.task import Task
    from scenarios.tools import Toolbox, done
    from scenarios.trajectory import History, Trajectory, TrajectoryGroup
    from trainer.backend import TrainResult
    from trainer.config import (
        Cispo,
        ClippedSurrogate,
        Gspo,
        LoraSettings,
        PolicySettings,
        Ppo,
        Reinforce,
        SamplerCorrection,
        SftConfig,
        TrainConfig,
        VllmSettings,
    )
    from trainer.local import LocalBackend
    from trainer.model import Model, TrainableModel

    __version__: str

__all__ = [
    "Anchor",
    "Budget",
    "Cassette",
    "Cispo",
    "ClippedSurrogate",
    "Criterion",
    "GavelError",
    "GroupJudgement",
    "Gspo",
    "History",
    "Judge",
    "JudgeError",
    "Judgement",
    "Juror",
    "LocalBackend",
    "LoraSettings",
    "Model",
    "PolicySettings",
    "Ppo",
    "Reinforce",
    "Rubric",
    "SamplerCorrection",
    "Scenario",
    "SftConfig",
    "Shaping",
    "Task",
    "Toolbox",
    "TrainConfig",
    "TrainResult",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "TrajectoryStore",
    "VllmSettings",
    "__version__",
    "agreement",
    "done",
    "find_scenario",
    "gather_trajectories",
    "gather_trajectory_groups",
    "judge_vs_judge",
    "rollout",
    "ruler",
    "ruler_score_group",
    "run",
    "shape_group",
]

_NAMES = {
    "gavel.cli": ("run",),
    "judge.agreement": ("agreement",),
    "judge.anchors": ("Anchor",),
    "judge.budget": ("Budget",),
    "judge.cassette": ("Cassette",),
    "judge.errors": ("JudgeError",),
    "judge.judge": ("Judge",),
    "judge.juror": ("Juror",),
    "judge.reliability": ("judge_vs_judge",),
    "judge.rubric": ("Criterion", "Rubric"),
    "judge.ruler": ("ruler", "ruler_score_group"),
    "judge.shaping": ("Shaping", "shape_group"),
    "scenarios.errors": ("GavelError",),
    "scenarios.gather": ("gather_trajectories", "gather_trajectory_groups"),
    "scenarios.judgement": ("GroupJudgement", "Judgement"),
    "scenarios.rollout": ("rollout",),
    "scenarios.scenario": ("Scenario", "find_scenario"),
    "scenarios.store": ("TrajectoryStore",),
    "scenarios.task": ("Task",),
    "scenarios.tools": ("Toolbox", "done"),
    "scenarios.trajectory": ("History", "Trajectory", "TrajectoryGroup"),
    "trainer.backend": ("TrainResult",),
    "trainer.config": (
        "Cispo",
        "ClippedSurrogate",
        "Gspo",
        "LoraSettings",
        "PolicySettings",
        "Ppo",
        "Reinforce",
        "SamplerCorrection",
        "SftConfig",
        "TrainConfig",
        "VllmSettings",
    ),
    "trainer.local": ("LocalBackend",),
    "trainer.model": ("Model", "TrainableModel"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

_FLOORS = ("scenarios", "judge", "trainer", "prompts")


def _refuse_shadows() -> None:
    """Raises `ImportError` when another module takes the name of one of the packages that Gavel is made of."""
    house = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for floor in _FLOORS:
        ours = os.path.join(house, floor)
        spec = importlib.util.find_spec(floor)
        if spec is None:
            raise ImportError(f"Gavel's package {floor} is not installed beside {house}: install gavel-rl again.")
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        if os.path.join(ours, "__init__.py") in map(os.path.realpath, places):
            continue
        theirs = places[0] if places else floor
        raise ImportError(
            f"{theirs} takes the name of Gavel's own package {floor!r} ({ours}). Rename it, {floor}_of_mine say.",
            name=floor,
            path=theirs,
        )


_refuse_shadows()

if not TYPE_CHECKING:  # a type checker would otherwise believe in every name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            value = version("gavel-rl")
        elif name in _HOMES:
            value = _load(name, _HOMES[name])
        else:
            raise AttributeError(f"module 'gavel' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _load(name: str, home: str) -> object:
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not home.startswith("trainer.") or missing in ("gavel", *_FLOORS):
            raise
        from gavel.extras import MissingExtraError

        raise MissingExtraError(f"gavel.{name}", missing, "train") from error
