"""The model of a run's settings, where its directory is, and the backend that the settings name.

Imports torch; commands import it only when they run.
"""

from pathlib import Path

from gavel.cli.kept_run import remote_backend
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.model import TrainableModel
from gavel.trainer.run_config import BackendConfig, EvolveRunConfig, RunConfig
from gavel.trainer.runs.run_directory import run_path, runs_root


def trainable(config: RunConfig | EvolveRunConfig, scenario: Scenario | Mixture) -> TrainableModel:
    """The model of a run; its project is the scenario."""
    model = config.model
    return TrainableModel(
        name=model.base_model if model.name is None else model.name,
        project=scenario.name,
        base_model=model.base_model,
        lora=model.lora,
        policy=model.policy,
        from_checkpoint=model.from_checkpoint,
        renderer=model.renderer,
    )


def run_directory_of(model: TrainableModel) -> Path:
    return run_path(runs_root(), model.project, model.name)


async def opened_backend(
    backend: BackendConfig, config: RunConfig | EvolveRunConfig, path: str | None = None
) -> LocalBackend | RemoteBackend:
    """The backend that trains or samples, to be closed by the caller; `path`: where one on this machine keeps runs."""
    if backend.url is not None:
        return await remote_backend(backend.url)
    return LocalBackend(
        path,
        engine=backend.engine,
        slots=backend.slots,
        max_context=backend.max_context,
        max_reply=backend.max_reply,
        versions=(config.loop.max_staleness if isinstance(config, RunConfig) else 0) + 1 + backend.earlier_policies,
        shard_base=backend.shard_base,
        tracker=backend.tracker,
    )
