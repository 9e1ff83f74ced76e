"""ART's `LocalBackend`: trains and serves on this machine, through Gavel's backend.

Runs are Gavel's run directories under `path`. Beside them, `<path>/<project>/models/<name>/checkpoints/<step>` leads to
each checkpoint where ART's scripts look for it.
"""

import asyncio
import logging
import numbers
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import gavel.trainer.backends.local as core
from gavel.integrations.art.errors import absent, add_aliases, ignored
from gavel.integrations.art.model import Model, TrainableModel, as_group, gavel_name, link_checkpoints
from gavel.integrations.art.settings import sft_parts, train_config
from gavel.integrations.art.types import LocalTrainResult, TrainSFTConfig
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.training_run import TrainableSpec
from gavel.trainer.config import EngineChoice, VllmSettings
from gavel.trainer.model import Model as CoreModel
from gavel.trainer.model import TrainableModel as CoreTrainable
from gavel.trainer.runs.checkpoints import MANIFEST, Checkpoints
from gavel.trainer.runs.run_directory import (
    NamedCheckpointError,
    RunDirectory,
    RunDirectoryError,
    read_description,
    run_path,
)
from gavel.trainer.runs.storage.store import StorageError, open_store, pull_checkpoint, stored_steps

logger = logging.getLogger(__name__)

_CONTEXT = 4096
"""Max tokens of a conversation, unless `max_seq_length` is set."""
_VERSIONS = 2
"""Number of served adapters: a rollout that overlaps a step ends with the adapter that it started with."""
_INTERNAL = frozenset({"init_args", "engine_args", "peft_args", "trainer_args", "chat_template_kwargs"})


add_aliases(__name__, "backend")


class LocalBackend:
    """Trains and serves models on this machine; for `with`, `async with` or neither."""

    def __init__(
        self,
        *,
        in_process: bool = False,
        path: str | None = None,
        gpu_cost_per_hour_usd: float | None = None,
        engine: EngineChoice = "transformers",
    ) -> None:
        """`path`: directory of the runs (default `.art`). `engine`, which ART lacks: "vllm" samples with vLLM."""
        if gpu_cost_per_hour_usd is not None:
            ignored("LocalBackend(gpu_cost_per_hour_usd=…)", "the costs that are counted are the judge's")
        self._path = path or ".art"
        self._engine: EngineChoice = engine
        self._cores: dict[int, core.LocalBackend] = {}
        """Gavel's backends, by their context length."""
        self._logs: dict[tuple[str, str], TrainLog] = {}

    if not TYPE_CHECKING:  # a type checker detects a misspelt name itself

        def __getattr__(self, name: str) -> Any:
            raise absent(self, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # This thread may run a loop, which cannot wait for another one.
        closing = threading.Thread(target=lambda: asyncio.run(self.close()), name="close-backend")
        closing.start()
        closing.join()

    async def close(self) -> None:
        """Stops serving; the runs are kept."""
        for backend in self._cores.values():
            await backend.close()

    async def register(self, model: Model[Any]) -> None:
        """Prepares a model, and fills its inference fields."""
        model.base_path = self._path
        inner, backend = model.gavel_model(), self._core_of(model)
        await inner.register(backend)
        self._logs[inner.key] = TrainLog(inner, backend)
        if isinstance(model, TrainableModel):
            model.inference_base_url = inner.inference_base_url
            model.inference_api_key = inner.inference_api_key
            model.inference_model_name = inner.name
            self._link(model)

    async def train(
        self,
        model: TrainableModel[Any],
        trajectory_groups: Iterable[TrajectoryGroup | Trajectory | list[Trajectory]],
        **settings: Any,
    ) -> LocalTrainResult:
        """One training step on judged groups, which may be plain lists; its trajectories and metrics are stored."""
        groups = [as_group(item) for item in trajectory_groups]
        _drop_odd_metrics(groups)
        inner = cast("CoreTrainable", model.gavel_model())
        trainer: dict[str, Any] = model.internal_config.get("trainer_args") or {}
        trajectories = sum(map(len, groups))
        config = train_config(settings, trainer, groups=len(groups), trajectories=trajectories)
        result = await inner.train(groups, config)
        self._log_of(inner).trained(groups, result.metrics, result.step)
        return LocalTrainResult(result.step, dict(result.metrics), self._link(model))

    async def train_sft(
        self, model: TrainableModel[Any], trajectories: Iterable[Trajectory], config: TrainSFTConfig
    ) -> LocalTrainResult:
        """Supervised training; a schedule with many rates is several steps (see `sft_parts`)."""
        inner = cast("CoreTrainable", model.gavel_model())
        members = list(trajectories)
        results = [await inner.train_sft(part, settings) for part, settings in sft_parts(members, config)]
        if not results:
            return LocalTrainResult(await inner.get_step(), {}, self._link(model))
        return LocalTrainResult(results[-1].step, dict(results[-1].metrics), self._link(model))

    async def log(
        self,
        model: Model[Any],
        groups: list[TrajectoryGroup] | None,
        split: str,
        metrics: Mapping[str, float],
        step: int | None,
    ) -> None:
        """The same as `Model.log`."""
        _drop_odd_metrics(groups or [])
        await self._log_of(model.gavel_model()).log(groups, split, metrics, step)

    async def _experimental_pull_from_s3(
        self,
        model: Model[Any],
        *,
        s3_bucket: str | None = None,
        prefix: str | None = None,
        only_step: int | str | None = None,
        **options: Any,
    ) -> None:
        """Fetches the model's newest checkpoint (or that of `only_step`), if there is one; call it before `register`.

        The bucket is by default that of BACKUP_BUCKET; without one, nothing is fetched, and a warning says so.
        """
        if (address := _bucket("_experimental_pull_from_s3", s3_bucket, prefix, options)) is None:
            return
        key = model.gavel_model().key
        store, place = await asyncio.to_thread(open_store, address), "/".join(key)
        if await asyncio.to_thread(stored_steps, store, place):
            step = only_step if isinstance(only_step, int) else None
            await asyncio.to_thread(pull_checkpoint, store, place, step, Path(self._path), key)

    async def _experimental_push_to_s3(
        self, model: Model[Any], *, s3_bucket: str | None = None, prefix: str | None = None, **options: Any
    ) -> None:
        """Copies the model's newest checkpoint; a failed copy is logged, and training continues."""
        if (address := _bucket("_experimental_push_to_s3", s3_bucket, prefix, options)) is None:
            return
        inner = model.gavel_model()
        if not isinstance(inner, CoreTrainable) or not inner.backend.checkpoints(inner):
            return
        try:
            await inner.push(address)
        except StorageError as error:
            logger.warning("the checkpoint of %s was not copied: %s", model.name, error)

    async def _experimental_fork_checkpoint(
        self,
        model: TrainableModel[Any],
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
    ) -> None:
        """Makes `model` start with the newest checkpoint of another one, at that step; call it before `register`."""
        if from_s3_bucket is not None or prefix is not None:
            ignored("_experimental_fork_checkpoint(from_s3_bucket=…)", f"runs are kept in {self._path} alone")
        source = gavel_name(from_project or model.project), gavel_name(from_model)
        step = fork_checkpoint(Path(self._path), source, model.gavel_model().key, not_after_step)
        if verbose:
            print(f"{model.name} begins with step {step} of {from_model}")

    async def _get_step(self, model: TrainableModel[Any]) -> int:
        return await model.get_step()

    def _core_of(self, model: Model[Any]) -> core.LocalBackend:
        context = _context(model) if isinstance(model, TrainableModel) else _CONTEXT
        if context not in self._cores:
            versions = 1 if isinstance(self._engine, VllmSettings) and self._engine.sleep else _VERSIONS
            self._cores[context] = core.LocalBackend(
                self._path, engine=self._engine, max_context=context, versions=versions
            )
        return self._cores[context]

    def _log_of(self, inner: CoreModel) -> "TrainLog":
        _ = inner.backend  # raises if it is not registered
        return self._logs[inner.key]

    def _link(self, model: TrainableModel[Any]) -> str | None:
        inner = model.gavel_model()
        checkpoints = Path(self._path, *inner.key, "checkpoints")
        link_checkpoints(checkpoints, model.output_dir)  # their places in ART's earlier versions
        linked = link_checkpoints(checkpoints, model.output_dir / "checkpoints")
        return os.fspath(linked) if linked else None


def _bucket(call: str, bucket: str | None, prefix: str | None, options: Mapping[str, Any]) -> str | None:
    """The store's URL; None, with a warning, if no bucket is given. Warns about the call's other options."""
    for name in options.keys() - {"verbose"}:
        ignored(f"{call}({name}=…)", "one checkpoint is copied, whole")
    bucket = bucket or os.environ.get("BACKUP_BUCKET")
    if not bucket:
        ignored(f"{call}(…)", "no bucket is named by s3_bucket= or BACKUP_BUCKET")
        return None
    return f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"


def _drop_odd_metrics(groups: Iterable[TrajectoryGroup]) -> None:
    """Drops non-numeric metrics, which scripts may assign: they have no mean."""
    for member in (member for group in groups for member in group):
        odd = [name for name, value in member.metrics.items() if not isinstance(value, numbers.Real)]
        for name in odd:
            ignored(f"metrics[{name!r}] = {member.metrics.pop(name)!r}", "a metric is a number")


def _context(model: TrainableModel[Any]) -> int:
    """The context length in tokens; warns about settings without a counterpart."""
    internal = cast("dict[str, dict[str, Any]]", model.internal_config)
    init, engine = internal.get("init_args") or {}, internal.get("engine_args") or {}
    for name in set(internal) - _INTERNAL:
        ignored(f"_internal_config[{name!r}]", "this machine's devices are shared by learner and sampler")
    for group, args, known in (("init_args", init, "max_seq_length"), ("engine_args", engine, "max_model_len")):
        for name in set(args) - {known}:
            ignored(f"{group}[{name!r}]", "memory is planned by itself; engine= of LocalBackend sets up vLLM")
    return int(init.get("max_seq_length") or engine.get("max_model_len") or _CONTEXT)


def fork_checkpoint(root: Path, source: tuple[str, str], target: tuple[str, str], not_after: int | None) -> int:
    """Copies the newest complete checkpoint of the run `source` (project, name) up to the step `not_after`; returns its
    step.

    Raises `NamedCheckpointError` if there is none, and `RunDirectoryError` if the run `target` has started already.
    """
    found = run_path(root, *source)
    checkpoints = Checkpoints(found / "checkpoints")
    steps = [step for step in checkpoints.steps() if not_after is None or step <= not_after]
    step = next((step for step in reversed(steps) if checkpoints.is_whole(step)), None)
    if step is None:
        limit = "" if not_after is None else f" of a step up to {not_after}"
        raise NamedCheckpointError(f"{found} has no whole checkpoint{limit}", "Name a run that was trained.")
    description = read_description(found / "model.json")
    description.pop("from_checkpoint", None)  # the copy starts with this step, whatever the source started with
    directory = RunDirectory(root, *target)
    try:
        if directory.description():
            raise RunDirectoryError(
                f"the run in {directory.path} has begun already", "Give the model that is forked to another name."
            )
        directory.checkpoints.save(step, lambda copy: _copy(checkpoints.path(step), copy))
        directory.describe(description | {"project": target[0], "name": target[1]})
    finally:
        directory.close()
    return step


def _copy(checkpoint: Path, copy: Path) -> None:
    shutil.copytree(checkpoint, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))


class TrainLog:
    """Tracks what `model.log` stores besides training, so that nothing is stored twice or lost.

    Training stores its trajectories and a row of metrics itself. ART's scripts log the same groups before or after it:
    before, they are stored in the file of the next step, which replaces them; after, they are recognized and skipped.
    """

    def __init__(self, model: CoreModel, backend: core.LocalBackend) -> None:
        self._model = model
        self._backend = backend
        self._logged: list[TrajectoryGroup] = []
        """Groups logged for training since the last step."""
        self._trained: list[TrajectoryGroup] = []
        """Groups of the last step; the references keep their ids unique."""
        self._metrics: Mapping[str, float] = {}
        """Metrics of the last step."""

    def trained(self, groups: list[TrajectoryGroup], metrics: Mapping[str, float], step: int) -> None:
        """After a step: stores again the groups logged for it that were not trained."""
        stored = _turns(groups)
        left = [part for group in self._logged if (part := _without(group, stored))]
        if left:
            self._backend.store(self._model, left, "train", step)
        self._logged, self._trained, self._metrics = [], groups, metrics

    async def log(
        self, groups: list[TrajectoryGroup] | None, split: str, metrics: Mapping[str, float], step: int | None
    ) -> None:
        """Stores groups and metrics; those of the training split as the module describes."""
        if split != "train" or not isinstance(self._model, TrainableSpec):
            if groups is not None:
                await self._backend.log(self._model, groups, split, metrics=metrics)
            elif metrics:
                self._backend.record(self._model, metrics, split)
            return
        new = {name: value for name, value in metrics.items() if self._metrics.get(name) != value}
        if new:
            self._backend.record(self._model, new, split)
        stored = _turns([*self._trained, *self._logged])
        left = [part for group in groups or () if (part := _without(group, stored))]
        if left:
            self._backend.store(self._model, left, split, self._backend.step(self._model) + 1)
            self._logged += left


def _turns(groups: Iterable[TrajectoryGroup]) -> set[int]:
    return {_turn(member) for group in groups for member in group}


def _turn(member: Trajectory) -> int:
    """The last turn, which a trajectory shares with its judged copy and no other."""
    return id(member.messages_and_choices[-1] if member.messages_and_choices else member)


def _without(group: TrajectoryGroup, stored: set[int]) -> TrajectoryGroup | None:
    """The group without stored members; None if none is left."""
    left = [member for member in group if _turn(member) not in stored]
    return group.model_copy(update={"trajectories": left}) if left else None


LocalAPI = LocalBackend
"""The name in ART's first versions."""
