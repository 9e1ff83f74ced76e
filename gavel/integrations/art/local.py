"""ART's `LocalBackend`: trains and serves on this machine, through Gavel's backend.

Runs are Gavel's run directories under `path`. Beside them, `<path>/<project>/models/<name>/checkpoints/<step>` leads to
each checkpoint where ART's scripts look for it.
"""

import asyncio
import logging
import numbers
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import gavel.trainer.backends.local as core
from gavel.integrations.art.errors import absent, add_aliases, ignored
from gavel.integrations.art.model import Groups, Model, TrainableModel, as_group, gavel_name, link_checkpoints
from gavel.integrations.art.settings import sft_parts, train_config
from gavel.integrations.art.types import LocalTrainResult, TrainSFTConfig
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import EngineChoice, VllmSettings
from gavel.trainer.model import TrainableModel as CoreTrainable
from gavel.trainer.runs.run_directory import NamedCheckpointError, RunDirectoryError, run_path
from gavel.trainer.runs.stores import StorageError, open_store, pull_checkpoint, stored_steps

logger = logging.getLogger(__name__)

_CONTEXT = 4096
"""Max tokens of a conversation, unless `max_seq_length` is set."""
_VERSIONS = 2
"""Number of served adapters: a rollout that overlaps a step ends with the adapter that it started with."""
_INTERNAL = frozenset({"init_args", "engine_args", "peft_args", "trainer_args", "chat_template_kwargs"})
LOGGED = "logged"
"""Split of trajectories that a script logs as training's and that the last step did not train."""


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
        self._last: dict[tuple[str, str], tuple[list[TrajectoryGroup], Mapping[str, float]]] = {}
        """Groups and metrics of each model's last step. The references keep the turns' ids unique."""

    if not TYPE_CHECKING:  # a type checker detects a misspelt name itself

        def __getattr__(self, name: str) -> Any:
            raise absent(self, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
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
        inner, context = model.gavel_model(), _context(model) if isinstance(model, TrainableModel) else _CONTEXT
        if context not in self._cores:
            versions = 1 if isinstance(self._engine, VllmSettings) and self._engine.sleep else _VERSIONS
            self._cores[context] = core.LocalBackend(
                self._path, engine=self._engine, max_context=context, versions=versions
            )
        await inner.register(self._cores[context])
        if isinstance(model, TrainableModel):
            model.inference_base_url = inner.inference_base_url
            model.inference_api_key = inner.inference_api_key
            model.inference_model_name = inner.name
            self._link(model)

    async def train(self, model: TrainableModel[Any], trajectory_groups: Groups, **settings: Any) -> LocalTrainResult:
        """One training step on judged groups, which may be plain lists; its trajectories and metrics are stored."""
        groups = [as_group(item) for item in trajectory_groups]
        _drop_odd_metrics(groups)
        inner = cast("CoreTrainable", model.gavel_model())
        trainer: dict[str, Any] = model.internal_config.get("trainer_args") or {}
        config = train_config(settings, trainer, groups=len(groups), trajectories=sum(map(len, groups)))
        result = await inner.train(groups, config)
        self._last[inner.key] = groups, result.metrics
        return LocalTrainResult(result.step, dict(result.metrics), self._link(model))

    async def train_sft(
        self, model: TrainableModel[Any], trajectories: Iterable[Trajectory], config: TrainSFTConfig
    ) -> LocalTrainResult:
        """Supervised training; a schedule with many rates is several steps (see `sft_parts`)."""
        inner = cast("CoreTrainable", model.gavel_model())
        metrics: dict[str, float] = {}
        for part, settings in sft_parts(list(trajectories), config):
            metrics = dict((await inner.train_sft(part, settings)).metrics)
        return LocalTrainResult(await inner.get_step(), metrics, self._link(model))

    async def log(
        self, model: Model[Any], groups: list[TrajectoryGroup] | None, split: str, metrics: Mapping[str, float]
    ) -> None:
        """Stores groups and metrics.

        Training stores its own. ART's scripts log the same again, so of the split "train" only other metrics are added,
        and only other trajectories are stored, under "logged".
        """
        inner = model.gavel_model()
        backend = cast("core.LocalBackend", inner.backend)  # raises if it is not registered
        if split == "train" and isinstance(inner, CoreTrainable):
            trained, known = self._last.get(inner.key, ([], {}))
            turns = {_last_turn(member) for group in trained for member in group}
            if new := {name: value for name, value in metrics.items() if known.get(name) != value}:
                backend.record(inner, new, split)
            others = [[member for member in group if _last_turn(member) not in turns] for group in groups or ()]
            backend.store(inner, [TrajectoryGroup(each) for each in others if each], LOGGED, backend.step(inner))
        elif groups is not None:
            _drop_odd_metrics(groups)
            await backend.log(inner, groups, split, metrics=metrics)
        elif metrics:
            backend.record(inner, metrics, split)

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
        """Makes `model` start with the newest checkpoint of another one, at that step; call it before `register`.

        Raises `NamedCheckpointError` if there is none, and `RunDirectoryError` if the run of `model` has started.
        """
        if from_s3_bucket is not None or prefix is not None:
            ignored("_experimental_fork_checkpoint(from_s3_bucket=…)", f"runs are kept in {self._path} alone")
        # A directory of runs is also a store of checkpoints.
        store, key = open_store(self._path), model.gavel_model().key
        place = f"{gavel_name(from_project or model.project)}/{gavel_name(from_model)}"
        steps = [step for step in stored_steps(store, place) if not_after_step is None or step <= not_after_step]
        if not steps:
            limit = "" if not_after_step is None else f" of a step up to {not_after_step}"
            raise NamedCheckpointError(
                f"{self._path}/{place} has no whole checkpoint{limit}", "Name a run that was trained."
            )
        own = run_path(Path(self._path), *key)
        if (own / "model.json").exists():
            raise RunDirectoryError(f"the run in {own} has begun already", "Give the fork's model another name.")
        step = await asyncio.to_thread(pull_checkpoint, store, place, steps[-1], Path(self._path), key)
        if verbose:
            print(f"{model.name} begins with step {step} of {from_model}")

    async def _get_step(self, model: TrainableModel[Any]) -> int:
        return await model.get_step()

    def _link(self, model: TrainableModel[Any]) -> str | None:
        checkpoints = Path(self._path, *model.gavel_model().key, "checkpoints")
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


def _last_turn(member: Trajectory) -> int:
    """The id of the last turn, which a trajectory shares with its judged copy and no other."""
    return id(member.messages_and_choices[-1] if member.messages_and_choices else member)


LocalAPI = LocalBackend
"""The name in ART's first versions."""
