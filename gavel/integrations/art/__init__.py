"""A drop-in for OpenPipe ART, with changed imports: `import gavel.integrations.art as art`.

    from gavel.integrations.art.local import LocalBackend
    from gavel.integrations.art.rewards import ruler_score_group

ART's interfaces are kept; Gavel judges, trains and stores. docs/art.md lists similarities, differences and missing
parts. A setting without effect is reported once, in a warning.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gavel.integrations.art import dev, errors, gather, model, rewards, trajectories, types, utils
from gavel.integrations.art.auto_trajectory import auto_trajectory, capture_auto_trajectory
from gavel.integrations.art.errors import add_missing_modules
from gavel.integrations.art.gather import gather_trajectories, gather_trajectory_groups, trajectory_group_batches
from gavel.integrations.art.model import Backend, Model, TrainableModel
from gavel.integrations.art.trajectories import (
    History,
    Trajectory,
    TrajectoryGroup,
    capture_yielded_trajectory,
    yield_trajectory,
)
from gavel.integrations.art.types import (
    LocalTrainResult,
    LoRAConfig,
    Messages,
    MessagesAndChoices,
    ServerlessTrainResult,
    Tools,
    TrainConfig,
    TrainResult,
    TrainSFTConfig,
)
from gavel.integrations.art.utils import retry

add_missing_modules()
for _name, _module in (("backend", model), ("batches", gather), ("yield_trajectory", trajectories)):
    sys.modules[f"{__name__}.{_name}"] = _module  # the modules in which ART defines their names

if TYPE_CHECKING:
    from gavel.integrations.art import langgraph, local, mcp
    from gavel.integrations.art.local import LocalBackend

__all__ = [
    "Backend",
    "History",
    "LoRAConfig",
    "LocalBackend",
    "LocalTrainResult",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "ServerlessTrainResult",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "dev",
    "errors",
    "gather_trajectories",
    "gather_trajectory_groups",
    "langgraph",
    "local",
    "mcp",
    "retry",
    "rewards",
    "trajectory_group_batches",
    "types",
    "utils",
    "yield_trajectory",
]

_LATER = {
    "LocalAPI": "local",
    "LocalBackend": "local",
    "ServerlessBackend": "serverless",
    **{module: module for module in ("langgraph", "local", "mcp", "pipeline_trainer", "serverless", "skypilot")},
}
"""Names imported on first use: they need optional libraries, or those of training."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"art.{name} is not in gavel.integrations.art; docs/art.md says what is")
    module = importlib.import_module(f"{__name__}.{_LATER[name]}")
    return module if name == _LATER[name] else getattr(module, name)
