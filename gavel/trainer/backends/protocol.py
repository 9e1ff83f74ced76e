"""What trains and serves a model: one protocol for here, a server, and a cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import SftConfig, TrainConfig

if TYPE_CHECKING:
    from gavel.trainer.model import Model, TrainableModel


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served, OpenAI-compatible."""

    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What one call of `model.train` or `model.train_sft` did."""

    step: int
    """Training steps done so far; the adapter of this step is now live."""
    trained: bool
    """False when there was nothing to learn from; `reason` then says why, and the adapter is unchanged."""
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class Backend(Protocol):
    """Every method may raise a `GavelError` that says what to do."""

    async def register(self, model: "Model") -> None:
        """Makes the model ready, going on from its newest checkpoint."""
        ...

    async def train(
        self,
        model: "TrainableModel",
        groups: list[TrajectoryGroup],
        config: TrainConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> TrainResult:
        """One training step; its adapter is saved and live when this returns. `metrics` join those of the step."""
        ...

    async def train_sft(
        self, model: "TrainableModel", trajectories: list[Trajectory], config: SftConfig
    ) -> TrainResult:
        """One training step on what the trajectories say; its adapter is saved and live when this returns."""
        ...

    async def log(self, model: "Model", groups: list[TrajectoryGroup], split: str) -> dict[str, float]:
        """Stores trajectories and their mean metrics under the current step; returns the means."""
        ...

    def endpoint(self, model: "TrainableModel") -> Endpoint:
        """Where the current policy is served."""
        ...

    def step(self, model: "Model") -> int:
        """Training steps done so far."""
        ...

    def versions(self, model: "TrainableModel") -> int:
        """How many steps' adapters are served at once, the newest among them, as `name@step`."""
        ...

    def checkpoints(self, model: "TrainableModel") -> list[int]:
        """Steps whose checkpoints are kept, in order."""
        ...

    def record(self, model: "Model", values: Mapping[str, float | str], split: str) -> None:
        """Adds a row of metrics under the current step."""
        ...

    def pin(self, model: "Model", settings: Mapping[str, Any]) -> None:
        """Writes down what the run is begun with, or raises when it was begun with something else."""
        ...

    def history(self, model: "Model", split: str | None = None) -> list[dict[str, Any]]:
        """The rows of a split (or of all) so far: `step`, `split`, `time` and the metrics."""
        ...

    async def delete_checkpoints(self, model: "TrainableModel", steps: Iterable[int]) -> None:
        """Deletes the checkpoints of `steps`."""
        ...

    async def close(self) -> None:
        """Stops serving and frees what it holds; the run directory stays."""
        ...
