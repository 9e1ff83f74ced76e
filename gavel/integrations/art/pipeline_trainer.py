"""ART's `PipelineTrainer`.

    trainer = PipelineTrainer(model, backend, rollout_fn, scenarios, config=None, max_steps=20, eval_fn=evaluate)
    await trainer.train()

Workers play scenarios and put their groups into a queue; a step takes at least `min_batch_size` groups that were begun
at most `max_steps_off_policy` steps ago. Between steps the policy is evaluated, while workers continue. A restarted run
continues with the scenario after the last one that was started.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from pydantic import BaseModel, Field, model_validator

from gavel.integrations.art.errors import add_aliases, ignored
from gavel.integrations.art.model import Backend, TrainableModel
from gavel.integrations.art.trajectories import TrajectoryGroup
from gavel.scenarios.gather import GatherError
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.model import TrainableModel as CoreTrainable

add_aliases(__name__, "trainer", "types")

Scenario = TypeVar("Scenario")
Config = TypeVar("Config")
RolloutFn = Callable[[TrainableModel[Any], Scenario, Config], Awaitable[TrajectoryGroup]]
SingleRolloutFn = Callable[[TrainableModel[Any], Scenario, Config], Awaitable[Trajectory]]
Evaluated = list[Trajectory | TrajectoryGroup] | list[Trajectory] | list[TrajectoryGroup]
EvalFn = Callable[[TrainableModel[Any], int, Config], Awaitable[Evaluated | dict[str, Evaluated]]]
"""Returns the trajectories of a step's policy, or those of several splits by name."""
logger = logging.getLogger(__name__)
_STATE = "_pipeline_trainer"
_END: Any = object()


class CheckpointRetention(NamedTuple):
    """The checkpoints that are kept beside the live one."""

    recent: int
    top: int
    metric: str


def keep_recent_and_top(*, recent: int = 5, top: int = 2, metric: str = "val/reward") -> CheckpointRetention:
    """Keeps the newest `recent` checkpoints, and the `top` ones with the highest `metric`."""
    if recent < 0 or top < 0:
        raise ValueError("recent and top are at least 0")
    return CheckpointRetention(recent, top, metric)


def make_group_rollout_fn(single_rollout_fn: SingleRolloutFn[Any, Any], n: int = 4) -> RolloutFn[Any, Any]:
    """A group rollout of `n` concurrent single rollouts; failures become the group's exceptions."""

    async def roll_out_group(model: TrainableModel[Any], scenario: Any, config: Any) -> TrajectoryGroup:
        return await TrajectoryGroup(single_rollout_fn(model, scenario, config) for _ in range(n))

    return roll_out_group


class PipelineRuntimeConfig(BaseModel):
    """Sizes of the pipeline."""

    num_rollout_workers: int = Field(default=16, ge=1)
    min_batch_size: int = Field(default=4, ge=1)
    """Min groups of a step."""
    max_batch_size: int | None = None
    """Max groups of a step; by default ten times `min_batch_size`."""
    max_steps_off_policy: int | None = Field(default=4, ge=0)
    """Max training steps between a group's start and its own step; None: unlimited."""
    queue_maxsize: int | None = Field(default=None, ge=1)
    """Max groups that wait for training; by default `max_steps_off_policy`, or 4, times `max_batch_size`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.largest < self.min_batch_size:
            raise ValueError("max_batch_size is at least min_batch_size")
        return self

    @property
    def largest(self) -> int:
        return 10 * self.min_batch_size if self.max_batch_size is None else self.max_batch_size

    @property
    def waiting(self) -> int:
        lag = 4 if self.max_steps_off_policy is None else self.max_steps_off_policy
        return self.queue_maxsize or max(1, lag * self.largest)


class PipelineTrainer(Generic[Scenario, Config]):
    """Trains concurrently with rollouts."""

    def __init__(
        self,
        model: TrainableModel[Any],
        backend: Backend,
        rollout_fn: RolloutFn[Scenario, Config],
        scenarios: AsyncIterator[Scenario] | Iterable[Scenario],
        config: Config,
        eval_fn: EvalFn[Config] | None = None,
        *,
        pipeline: PipelineRuntimeConfig | None = None,
        max_steps: int | None = None,
        discard_queue_multiplier: int = 100,
        eval_every_n_steps: int = 20,
        eval_at_start: bool = True,
        eval_step_0: bool | None = None,
        checkpoint_retention_strategy: CheckpointRetention | None = None,
        checkpoint_retention_interval: int = 1,
        resume: bool = True,
        **settings: Any,
    ) -> None:
        """`settings`: the fields of `PipelineRuntimeConfig`, also beside `pipeline`, and options of `backend.train`
        (`learning_rate` is 1e-5 unless given).

        `eval_step_0`: the name of `eval_at_start` in earlier versions of ART. `eval_every_n_steps` 0: only at the
        start. Training stops after `discard_queue_multiplier * min_batch_size` consecutive groups from which nothing
        can be learned.
        """
        sizes = {name: settings.pop(name) for name in PipelineRuntimeConfig.model_fields if name in settings}
        for name in ("num_rollout_workers", "min_batch_size"):
            if sizes.get(name, 1) is None:  # the default of later versions
                del sizes[name]
        self.model = model
        self.backend = backend
        self.rollout_fn = rollout_fn
        self.config = config
        self.eval_fn = eval_fn
        self.pipeline = PipelineRuntimeConfig(**(pipeline.model_dump() if pipeline else {}) | sizes)
        self.max_steps = max_steps
        self.eval_every_n_steps = eval_every_n_steps
        self.eval_at_start = eval_at_start if eval_step_0 is None else eval_step_0
        self.checkpoint_retention_strategy = checkpoint_retention_strategy
        self.checkpoint_retention_interval = checkpoint_retention_interval
        self.resume = resume
        self._settings = {"learning_rate": 1e-5} | settings
        self._scenarios = _iterate(scenarios)
        self._most_discarded = discard_queue_multiplier * self.pipeline.min_batch_size
        self._begun = 0
        """Scenarios started, including earlier runs."""
        self._played: asyncio.Queue[tuple[TrajectoryGroup, int] | None] = asyncio.Queue()
        """Groups to train, each with the step of the policy when it started; None: no more will come."""
        self._room = asyncio.Semaphore()
        self._stopping = False
        self._discarded: list[TrajectoryGroup] = []
        """Groups dropped since the last step, since nothing can be learned from them."""
        self._stale = 0

    async def train(self, *, handle_signals: bool | None = None) -> None:
        """Trains until the scenarios or `max_steps` are exhausted.

        Raises `GatherError` when all rollouts of a group failed, and the scenarios' own errors.
        """
        if handle_signals is not None:
            ignored("PipelineTrainer.train(handle_signals=…)", "an interrupted run goes on when it is started again")
        if self.resume:
            await self._skip()
        self._played, self._room = asyncio.Queue(), asyncio.Semaphore(self.pipeline.waiting)
        rollouts = asyncio.create_task(self._play_all())
        rollouts.add_done_callback(lambda _: self._played.put_nowait(None))
        try:
            await self._train()
            if rollouts.done():
                rollouts.result()
        finally:
            rollouts.cancel()
            await asyncio.gather(rollouts, return_exceptions=True)

    def request_stop(self) -> None:
        """Stops training after the current step."""
        self._stopping = True
        self._played.put_nowait(None)

    async def _play_all(self) -> None:
        one_at_a_time = asyncio.Lock()
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self.pipeline.num_rollout_workers):
                    workers.create_task(self._play(one_at_a_time))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _play(self, one_at_a_time: asyncio.Lock) -> None:
        while not self._stopping:
            async with one_at_a_time:
                scenario = await anext(self._scenarios, _END)
            if scenario is _END:
                return
            self._begun += 1
            step = await self.model.get_step()
            try:
                group = _described(await self.rollout_fn(self.model, scenario, self.config), scenario)
            except Exception as error:
                logger.warning("a rollout failed: %s: %s", type(error).__name__, error)
                group = TrajectoryGroup([error])
            else:
                if group.exceptions and not group.trajectories:
                    failed, first = len(group.exceptions), group.exceptions[0]
                    raise GatherError(f"all {failed} rollouts of a group failed, the first one with: {first}")
            await self._room.acquire()
            self._played.put_nowait((group, step))

    async def _train(self) -> None:
        step = evaluated = await self.model.get_step()
        end = None if self.max_steps is None else step + self.max_steps
        if self.eval_at_start:
            await self._evaluate(step)
        while (end is None or step < end) and (batch := await self._batch(step)):
            groups = [group for group, _ in batch]
            counts = {
                "steps_off_policy": sum(step - begun for _, begun in batch) / len(batch),
                "discarded_groups": float(len(self._discarded)),
                "discarded_stale_groups": float(self._stale),
            }
            result = await self.backend.train(self.model, groups, **self._settings)
            step = result.step
            await self.model.log(groups, split="train", step=step, metrics=dict(result.metrics) | counts)
            if self._discarded:
                await self.model.log(self._discarded, split="discarded", step=step)
            self._discarded = []
            self.model.merge_state({_STATE: {"scenario_offset": self._begun, "training_step": step}})
            if self.eval_every_n_steps and step - evaluated >= self.eval_every_n_steps:
                await self._evaluate(step)
                evaluated = step
            if self.checkpoint_retention_strategy is not None and step % self.checkpoint_retention_interval == 0:
                recent, top, metric = self.checkpoint_retention_strategy
                inner = cast("CoreTrainable", self.model.gavel_model())
                await inner.delete_checkpoints(metric, keep_last=recent + 1, keep_best=top)

    async def _batch(self, step: int) -> list[tuple[TrajectoryGroup, int]]:
        """The groups of the next step; empty if training ends."""
        batch: list[tuple[TrajectoryGroup, int]] = []
        sizes = self.pipeline
        while len(batch) < sizes.largest and (len(batch) < sizes.min_batch_size or not self._played.empty()):
            item = await self._played.get()
            if self._stopping:
                return []
            if item is None:
                self._played.put_nowait(None)  # for the next batch
                break
            self._room.release()
            if self._can_be_trained(*item, step):
                batch.append(item)
        return batch

    def _can_be_trained(self, group: TrajectoryGroup, begun: int, step: int) -> bool:
        """Whether a group can be trained; counts those that cannot."""
        most = self.pipeline.max_steps_off_policy
        if most is not None and step - begun > most:
            self._stale += 1
            return False
        if len({member.reward for member in group}) > 1:
            return True
        self._discarded.append(group)
        if len(self._discarded) >= self._most_discarded:
            logger.warning(
                "Training stops: %d groups in a row failed or had equal rewards in all their trajectories, from which "
                "nothing can be learnt. The policy may have collapsed (lower the learning rate), or the tasks are too "
                "easy or too hard. discard_queue_multiplier sets the limit.",
                len(self._discarded),
            )
            self.request_stop()
        return False

    async def _evaluate(self, step: int) -> None:
        if self.eval_fn is None:
            return
        try:
            found = await self.eval_fn(self.model, step, self.config)
        except Exception:
            logger.exception("the evaluation of step %d failed; training goes on", step)
            return
        for split, items in (found if isinstance(found, dict) else {"val": found}).items():
            await self.model.log(items, split=split, step=step)

    async def _skip(self) -> None:
        """Skips the scenarios that earlier runs started."""
        state = (self.model.read_state() or {}).get(_STATE, {})
        while self._begun < int(state.get("scenario_offset") or 0):
            if await anext(self._scenarios, _END) is _END:
                logger.warning("all scenarios were played by earlier runs; resume=False plays them again")
                return
            self._begun += 1


async def _iterate(scenarios: Any) -> AsyncIterator[Any]:
    if isinstance(scenarios, AsyncIterator):
        async for scenario in cast("AsyncIterator[Any]", scenarios):
            yield scenario
        return
    for scenario in scenarios:
        yield scenario


def _described(group: Any, scenario: Any) -> TrajectoryGroup:
    """The group, with the plain values of its scenario's metadata."""
    if not isinstance(group, TrajectoryGroup):
        raise TypeError(f"rollout_fn gives a TrajectoryGroup, not a {type(group).__name__} (see make_group_rollout_fn)")
    metadata: Any = cast("dict[str, Any]", scenario).get("metadata") if isinstance(scenario, dict) else None
    for name, value in (cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}).items():
        if value is None or isinstance(value, str | int | float | bool):
            group.metadata[name if name == "scenario_id" else f"scenario_{name}"] = value
    return group
