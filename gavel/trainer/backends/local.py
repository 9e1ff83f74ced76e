"""LocalBackend: trains and serves models in this process, each over its own run directory.

One lock per run directory: no two processes train the same run. A model whose step failed is released, so that
registering it again resumes from the last checkpoint.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.proof import PublishError
from gavel.trainer.backends.protocol import Endpoint, NotRegisteredError, TrainResult
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.backends.training_run import SaveError, Serving, TrainingRun, saving
from gavel.trainer.config import EngineChoice, ExportDtype, ExportForm, SftConfig, TrainConfig, VllmSettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import TokenSpace
from gavel.trainer.distributed import World, join
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.learner.replicas import follow_leader
from gavel.trainer.model_spec import ModelSpec, TrainableSpec, describe_model
from gavel.trainer.runs.metrics import MetricsError, trajectory_means
from gavel.trainer.runs.run_directory import EXPERIMENT, RunDirectory, RunDirectoryError, run_path, runs_root
from gavel.trainer.runs.stores import open_store, push_checkpoint
from gavel.trainer.runs.trackers import TrackerError, TrackerName

_Key = tuple[str, str]
_Done = TypeVar("_Done")
_registering = threading.Lock()
"""Models are loaded one after another: `from_pretrained` in two threads at once breaks both."""
_holders: "weakref.WeakValueDictionary[Path, LocalBackend]" = weakref.WeakValueDictionary()
"""The backend of this process that holds a run directory."""

logger = logging.getLogger(__name__)


class LocalBackend:
    """Trains and serves models on this machine; also an async context manager.

    Under `torchrun` the process of rank 0 leads: `register` returns there alone. The others train with it inside
    `register`, and leave it by `SystemExit` when the leader ends.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        engine: EngineChoice = "transformers",
        host: str = "127.0.0.1",
        port: int = 0,
        slots: int = 128,
        max_context: int | None = None,
        max_reply: int | None = None,
        versions: int = 1,
        shard_base: bool = False,
        tracker: TrackerName | None = None,
    ) -> None:
        """`path`: where runs are kept (default GAVEL_RUNS, else `runs`). `port` 0 takes a free one.

        `engine` samples the rollouts: the embedded engine, or vLLM. Its cache holds `slots` conversations of up to
        `max_context` tokens (default: the model's own context, or what memory holds of it), fewer where memory is
        short. A reply whose request sets no `max_tokens` ends after `max_reply` (default: with the context).
        `versions`: adapters served at once, so that a conversation finishes on the adapter that
        it started with while training continues; `LoopConfig.max_staleness` needs `max_staleness + 1`. `shard_base`
        shards the learner's base model over the processes of `torchrun`, for one that does not fit one device; it
        needs vLLM. `tracker` shows metrics, groups and reports, too (default: W&B, if its environment variables ask for
        it). Raises `EngineError` for several versions with a vLLM that sleeps during training.
        """
        self._root = runs_root(path)
        vllm = engine if isinstance(engine, VllmSettings) else VllmSettings() if engine == "vllm" else None
        if versions > 1 and vllm is not None and vllm.sleep:
            raise EngineError(
                "a vLLM that sleeps while the learner computes cannot sample rollouts at the same time",
                "Leave VllmSettings.sleep off, or max_staleness at 0 (versions=1).",
            )
        self._serving = Serving(vllm, slots, max_context, max_reply, versions, host, port, shard_base)
        self._tracker: TrackerName | None = tracker
        self._directories: dict[_Key, RunDirectory] = {}
        self._training: dict[_Key, TrainingRun] = {}

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def register(self, model: ModelSpec) -> None:
        """Makes the model ready. A run that another backend of this process holds is taken over from it, saved."""
        world = join()
        if world.rank:
            follow_leader(world)
            raise SystemExit
        await asyncio.to_thread(self._register, model, world)

    async def prepare(self, model: TrainableSpec, config: TrainConfig) -> None:
        await self._step(model, lambda run: run.prepare(config))

    async def train(
        self,
        model: TrainableSpec,
        groups: list[TrajectoryGroup],
        config: TrainConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> TrainResult:
        return await self._step(model, lambda run: run.train(groups, config, metrics or {}))

    async def train_sft(self, model: TrainableSpec, trajectories: list[Trajectory], config: SftConfig) -> TrainResult:
        return await self._step(model, lambda run: run.train_sft(trajectories, config))

    async def log(
        self,
        model: ModelSpec,
        groups: list[TrajectoryGroup],
        split: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        directory, step = self._directory(model), self.step(model) if step is None else step
        # Trajectories without a metrics row were left by a process that was killed before it wrote the row.
        has_row = any(row["step"] == step for row in directory.metrics.rows(split))
        store = (directory.trajectories if has_row else directory.fresh_trajectories)(split, step)
        with saving(step):
            await asyncio.to_thread(store.extend, groups)
        means = trajectory_means(groups) | dict(metrics or {})
        directory.metrics.log(step, split, means)
        await asyncio.to_thread(directory.metrics.log_groups, step, split, groups)
        if isinstance(model, TrainableSpec):
            self._run(model).update_card()
        return means

    async def logged(self, model: ModelSpec, split: str, step: int) -> list[TrajectoryGroup]:
        store = self._directory(model).trajectories(split, step)
        return await asyncio.to_thread(lambda: list(store) if store.path.exists() else [])

    def store(self, model: ModelSpec, groups: list[TrajectoryGroup], split: str, step: int) -> None:
        """Stores trajectories under any step of a split, without a row of metrics."""
        with saving(step):
            self._directory(model).trajectories(split, step).extend(groups)

    def endpoint(self, model: TrainableSpec) -> Endpoint:
        return self._run(model).endpoint

    def step(self, model: ModelSpec) -> int:
        return self._run(model).step if isinstance(model, TrainableSpec) else 0

    def versions(self, model: TrainableSpec) -> int:
        return self._serving.versions

    def checkpoints(self, model: TrainableSpec) -> list[int]:
        return self._directory(model).checkpoints.steps()

    def record(self, model: ModelSpec, values: Mapping[str, float | str], split: str) -> None:
        self._directory(model).metrics.log(self.step(model), split, values)

    def pin(self, model: ModelSpec, settings: Mapping[str, Any]) -> None:
        directory = self._directory(model)
        directory.check(dict(settings), EXPERIMENT)
        directory.describe(dict(settings), EXPERIMENT)

    def history(self, model: ModelSpec, split: str | None = None) -> list[dict[str, Any]]:
        return self._directory(model).metrics.rows(split)

    async def delete_checkpoints(self, model: TrainableSpec, steps: Iterable[int]) -> None:
        checkpoints = self._directory(model).checkpoints
        for step in sorted(set(steps).intersection(checkpoints.steps())):
            await asyncio.to_thread(checkpoints.delete, step)

    async def export(
        self, model: TrainableSpec, form: ExportForm, dtype: ExportDtype, step: int | None, out: Path | None
    ) -> Path:
        step = self._run(model).step if step is None else step
        return await asyncio.to_thread(export_run, self._directory(model).path, form, dtype=dtype, step=step, out=out)

    async def push(self, model: TrainableSpec, address: str, step: int) -> str:
        run, place = self._directory(model).path, "/".join(model.key)
        return await asyncio.to_thread(lambda: push_checkpoint(run, step, open_store(address), place))

    def token_space(self, model: TrainableSpec) -> TokenSpace:
        """The tokens of the base model, and the tokens of a conversation that it is served with."""
        return self._run(model).token_space

    async def logprobs(self, model: TrainableSpec, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """The live policy's log-probs of each sequence's trained tokens, in nats at their temperatures. `[S, T]`"""
        return await self._step(model, lambda run: run.logprobs(sequences))

    def parameter_count(self, model: TrainableSpec) -> int:
        """Parameters of the base model."""
        return self._run(model).policy.parameter_count

    async def close(self) -> None:
        for key in list(self._directories):
            await asyncio.to_thread(self._release, key)

    async def _step(self, model: TrainableSpec, step: Callable[[TrainingRun], _Done]) -> _Done:
        try:
            return await asyncio.to_thread(step, self._run(model))
        except (EngineError, MetricsError, PublishError, RunDirectoryError, SaveError, TrackerError):
            await asyncio.to_thread(self._release, model.key)
            raise

    def _register(self, model: ModelSpec, world: World) -> None:
        key = model.key
        with _registering:
            if key in self._directories:
                if not isinstance(model, TrainableSpec):
                    return
                if key in self._training and self._training[key].alive:
                    self._directories[key].check(describe_model(model))
                    return
                self._release(key)  # its engine has stopped (it resumes from the last checkpoint), or it was prompted
            path = run_path(self._root, *key).resolve()
            holder = _holders.get(path)
            if holder is not None and key in holder._directories:
                told = (
                    "the run in %s goes on in the backend that registered it last; clients made before: make them anew"
                )
                logger.warning(told, path)
                holder._release(key)
            directory = RunDirectory(self._root, model.project, model.name, self._tracker)
            try:
                if isinstance(model, TrainableSpec):
                    self._training[key] = TrainingRun(model, directory, world, self._serving)
            except BaseException:
                directory.close()
                directory.discard_if_new()
                raise
            self._directories[key] = directory
            _holders[path] = self

    def _release(self, key: _Key) -> None:
        run, directory = self._training.pop(key, None), self._directories.pop(key)
        if run is not None:
            run.close()
        directory.close()

    def _directory(self, model: ModelSpec) -> RunDirectory:
        if model.key not in self._directories:
            raise NotRegisteredError.of(model.name)
        directory = self._directories[model.key]
        directory.check_held()
        return directory

    def _run(self, model: TrainableSpec) -> TrainingRun:
        self._directory(model)
        return self._training[model.key]
