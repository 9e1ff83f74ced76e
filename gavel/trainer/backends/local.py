"""LocalBackend: trains and serves models in this process, each over its own run directory."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import Endpoint, TrainResult
from gavel.trainer.backends.session import PublishError, SaveError, TrainingRun
from gavel.trainer.config import EngineChoice, SftConfig, TrainConfig, VllmSettings
from gavel.trainer.distributed import World, join
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.learner.replicas import follow_leader
from gavel.trainer.model import Model, NotRegisteredError, TrainableModel
from gavel.trainer.runs.metrics import trajectory_means
from gavel.trainer.runs.run_directory import RunDirectory, runs_root

_Key = tuple[str, str]
_EXPERIMENT = "experiment.json"


class LocalBackend:
    """Trains and serves models on this machine; also an async context manager.

    Under `torchrun` one process leads: it alone goes on after `register`, which the others leave when it ends, by
    `SystemExit`. They learn with it until then.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        engine: EngineChoice = "transformers",
        host: str = "127.0.0.1",
        port: int = 0,
        slots: int = 128,
        max_context: int = 4096,
        versions: int = 1,
        shard_base: bool = False,
    ) -> None:
        """`path`: where runs are kept (default GAVEL_RUNS, else `runs`). `port` 0 takes a free one.

        `engine` samples the rollouts: the embedded one, or vLLM. `slots` conversations of up to `max_context` tokens
        are held in its cache at once. `versions`: adapters that it holds, so that conversations finish on the one that
        they began with while training goes on; `LoopConfig.max_staleness` needs one more than itself. `shard_base`
        spreads the learner's base over the processes of `torchrun`, for one that does not fit one device; it needs
        vLLM. Raises `EngineError` for several versions with a vLLM that sleeps during training.
        """
        self._root = runs_root(path)
        self._vllm = engine if isinstance(engine, VllmSettings) else VllmSettings() if engine == "vllm" else None
        if versions > 1 and self._vllm is not None and self._vllm.sleep:
            raise EngineError(
                "a vLLM that sleeps while the learner computes cannot go on with rollouts meanwhile",
                "Leave VllmSettings.sleep off, or max_staleness at 0 (versions=1).",
            )
        self._versions = versions
        self._host = host
        self._port = port
        self._slots = slots
        self._max_context = max_context
        self._shard_base = shard_base
        self._directories: dict[_Key, RunDirectory] = {}
        self._training: dict[_Key, TrainingRun] = {}

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def register(self, model: Model) -> None:
        world = join()
        if world.rank:
            follow_leader(world)
            raise SystemExit
        key = (model.project, model.name)
        if key in self._directories:
            if not isinstance(model, TrainableModel) or self._training[key].alive:
                return
            await self._forget(key)  # its engine has stopped: start again from the last checkpoint
        directory = await asyncio.to_thread(RunDirectory, self._root, model.project, model.name)
        try:
            if isinstance(model, TrainableModel):
                self._training[key] = await asyncio.to_thread(self._start, model, directory, world)
        except BaseException:
            directory.close()
            directory.discard_if_new()
            raise
        self._directories[key] = directory

    async def train(
        self,
        model: TrainableModel,
        groups: list[TrajectoryGroup],
        config: TrainConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> TrainResult:
        return await self._step(model, lambda run: run.train(groups, config, metrics or {}))

    async def train_sft(self, model: TrainableModel, trajectories: list[Trajectory], config: SftConfig) -> TrainResult:
        return await self._step(model, lambda run: run.train_sft(trajectories, config))

    async def log(self, model: Model, groups: list[TrajectoryGroup], split: str) -> dict[str, float]:
        directory, step = self._directory(model), self.step(model)
        # Without a row, what lies there is of a process that was killed before it could write one.
        begun = any(row["step"] == step for row in directory.metrics.rows(split))
        store = (directory.trajectories if begun else directory.fresh_trajectories)(split, step)
        await asyncio.to_thread(store.extend, groups)
        means = trajectory_means(groups)
        directory.metrics.log(step, split, means)
        return means

    def endpoint(self, model: TrainableModel) -> Endpoint:
        return self._run(model).endpoint

    def step(self, model: Model) -> int:
        return self._run(model).step if isinstance(model, TrainableModel) else 0

    def versions(self, model: TrainableModel) -> int:
        return self._versions

    def checkpoints(self, model: TrainableModel) -> list[int]:
        return self._directory(model).checkpoints.steps()

    def record(self, model: Model, values: Mapping[str, float | str], split: str) -> None:
        self._directory(model).metrics.log(self.step(model), split, values)

    def pin(self, model: Model, settings: Mapping[str, Any]) -> None:
        directory = self._directory(model)
        directory.check(dict(settings), _EXPERIMENT)
        directory.describe(dict(settings), _EXPERIMENT)

    def history(self, model: Model, split: str | None = None) -> list[dict[str, Any]]:
        return self._directory(model).metrics.rows(split)

    async def delete_checkpoints(self, model: TrainableModel, steps: Iterable[int]) -> None:
        checkpoints = self._directory(model).checkpoints
        for step in steps:
            await asyncio.to_thread(checkpoints.delete, step)

    def parameter_count(self, model: TrainableModel) -> int:
        """Parameters of the base model."""
        return self._run(model).policy.parameter_count

    async def close(self) -> None:
        for key in list(self._directories):
            await self._forget(key)

    async def _step(self, model: TrainableModel, make: Callable[[TrainingRun], TrainResult]) -> TrainResult:
        try:
            return await asyncio.to_thread(make, self._run(model))
        except (EngineError, PublishError, SaveError):
            await self._forget((model.project, model.name))
            raise

    async def _forget(self, key: _Key) -> None:
        run, directory = self._training.pop(key, None), self._directories.pop(key)
        if run is not None:
            await asyncio.to_thread(run.close)
        await asyncio.to_thread(directory.close)

    def _start(self, model: TrainableModel, directory: RunDirectory, world: World) -> TrainingRun:
        return TrainingRun(
            model,
            directory,
            world,
            vllm=self._vllm,
            slots=self._slots,
            max_context=self._max_context,
            versions=self._versions,
            host=self._host,
            port=self._port,
            shard_base=self._shard_base,
        )

    def _directory(self, model: Model) -> RunDirectory:
        if (model.project, model.name) not in self._directories:
            raise NotRegisteredError(
                f"the model {model.name} is not registered here", "First: await model.register(backend)"
            )
        return self._directories[model.project, model.name]

    def _run(self, model: TrainableModel) -> TrainingRun:
        self._directory(model)
        return self._training[model.project, model.name]
