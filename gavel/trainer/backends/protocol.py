"""The backend protocol: one interface to train and serve models on this machine, a server or a cluster.

A backend knows a model by its `ModelSpec` alone; `gavel.Model` itself is one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from gavel.base.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import ExportDtype, ExportForm, SftConfig, TrainConfig
from gavel.trainer.model_spec import ModelSpec, TrainableSpec


class NotRegisteredError(GavelError):
    """A model was used before it was registered with a backend."""

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(f"the model {name} is not registered here", "First: await model.register(backend)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and name under which a model is served, OpenAI-compatible."""

    base_url: str
    api_key: str
    limits: str = ""
    """Its context and the longest reply, in a sentence; empty where they are not known."""
    repeats: int = 2
    """Times that a client sends a request again which the server could not take."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of one call of `model.train` or `model.train_sft`."""

    step: int
    """Training steps done so far; the adapter of this step is now live."""
    trained: bool
    """False when there was nothing to learn from; `reason` then says why, and the adapter is unchanged."""
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class Backend(Protocol):
    """Every method may raise a `GavelError` that says what to do."""

    async def register(self, model: ModelSpec) -> None:
        """Makes the model ready; one that was trained before resumes from its newest checkpoint."""
        ...

    async def prepare(self, model: TrainableSpec, config: TrainConfig) -> None:
        """Readies what steps by `config` need beside the model, such as a reference; raises before any is made."""
        ...

    async def train(
        self,
        model: TrainableSpec,
        groups: list[TrajectoryGroup],
        config: TrainConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> TrainResult:
        """One training step; its adapter is saved and live when this returns. `metrics` join those of the step."""
        ...

    async def train_sft(self, model: TrainableSpec, trajectories: list[Trajectory], config: SftConfig) -> TrainResult:
        """One supervised training step; its adapter is saved and live when this returns."""
        ...

    async def log(
        self,
        model: ModelSpec,
        groups: list[TrajectoryGroup],
        split: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Stores trajectories, their mean metrics and further `metrics` under a step (None = the current one); returns
        all of these metrics."""
        ...

    async def logged(self, model: ModelSpec, split: str, step: int) -> list[TrajectoryGroup]:
        """The groups that were stored under a step of a split; empty where there are none."""
        ...

    def endpoint(self, model: TrainableSpec) -> Endpoint:
        """The endpoint that serves the current policy."""
        ...

    def step(self, model: ModelSpec) -> int:
        """Training steps done so far."""
        ...

    def versions(self, model: TrainableSpec) -> int:
        """The number of steps whose adapters are served at once as `name@step`, the newest included."""
        ...

    def checkpoints(self, model: TrainableSpec) -> list[int]:
        """Steps whose checkpoints are kept, in order."""
        ...

    def record(self, model: ModelSpec, values: Mapping[str, float | str], split: str) -> None:
        """Adds a row of metrics under the current step."""
        ...

    def pin(self, model: ModelSpec, settings: Mapping[str, Any]) -> None:
        """Stores the settings that a run starts with; raises when it was started with other ones."""
        ...

    def history(self, model: ModelSpec, split: str | None = None) -> list[dict[str, Any]]:
        """The rows of a split (or of all) so far: `step`, `split`, `time` and the metrics."""
        ...

    async def delete_checkpoints(self, model: TrainableSpec, steps: Iterable[int]) -> None:
        """Deletes the checkpoints of `steps` that are kept."""
        ...

    async def export(
        self, model: TrainableSpec, form: ExportForm, dtype: ExportDtype, step: int | None, out: Path | None
    ) -> Path:
        """Writes the policy of `step` (default: the live one) as a directory, and returns it."""
        ...

    async def push(self, model: TrainableSpec, address: str, step: int) -> str:
        """Copies the checkpoint of `step` into the store of this address; gives where it is there."""
        ...

    async def close(self) -> None:
        """Stops serving and frees all memory and processes; the run directory stays."""
        ...
