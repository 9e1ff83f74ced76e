"""Episodes of one model on held-out tasks, each kept in a file as soon as it ends, so that none is sampled twice.

A file holds the episodes of one model under one set of settings (`SampledModel.file`): what else would change what
the model says is part of the file's name. A group in it is one episode; failed ones are not kept, and are tried again.

All models' attempts at one task are judged as one group that does not say whose they are. The orders of the judge
balance who is shown first. Each judged group is kept in a file as soon as it is scored; one of the same attempts is not
judged again.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavel.base.errors import run_all
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.llm.errors import LlmError
from gavel.scenarios.environment import NO_OUTCOME
from gavel.scenarios.group import TrajectoryGroup, unscored
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.experiment import describe_world, source_hash

COST, SECONDS = "cost_usd", "seconds"
"""Metrics of an episode's group; a cost that is not known is absent."""
_HOPELESS = 8
"""Episodes that fail before any succeeds, after which no further one is tried."""

Play = Callable[[Task, int], Awaitable[TrajectoryGroup]]
"""Plays a task with a seed: the trajectories of one episode."""
Sample = tuple[str, int]
"""Task id, and number of the sample from 0."""


@dataclass(frozen=True, slots=True)
class SampledModel:
    """A model whose episodes are wanted."""

    name: str
    identity: Mapping[str, Any]
    """The identity of its policy as JSON: a checkpoint's hash, an API model's id."""
    serve: Callable[[], AbstractAsyncContextManager[Play]]
    """Makes it ready; it is called only when an episode is missing."""

    def file(self, folder: Path, scenario: Scenario, config: LoopConfig) -> Path:
        """The file of its episodes. Tasks are compared one by one, and `success` is recomputed."""
        world = [getattr(scenario.environment, "func", scenario.environment), scenario.rollout]
        settings = {
            "model": dict(self.identity),
            "scenario": [scenario.name, describe_world(scenario), *map(source_hash, world)],
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "seed": config.seed,
        }
        slug = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in self.name)[:80]
        return folder / "samples" / f"{slug}-{_digest(settings)}.jsonl.zst"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def wanted_samples(tasks: Sequence[Task], samples: int) -> list[tuple[Task, int]]:
    """All first samples, then all second ones: what a stop leaves covers the tasks evenly."""
    return [(task, number) for number in range(samples) for task in tasks]


def stored_samples(file: Path, tasks: Sequence[Task]) -> dict[Sample, TrajectoryGroup]:
    """The episodes of these tasks that are kept; those of a task that has changed since are not."""
    if not file.is_file():
        return {}
    asked = {task.id: task.model_dump(mode="json") for task in tasks}
    found: dict[Sample, TrajectoryGroup] = {}
    for group in TrajectoryStore(file).read():
        task, number = group.metadata.get("task"), group.metadata.get("sample")
        if isinstance(task, dict) and isinstance(number, int) and asked.get(str(task.get("id"))) == task:
            found[str(task["id"]), number] = group
    return found


async def sample_missing(
    model: SampledModel,
    wanted: Sequence[tuple[Task, int]],
    file: Path,
    config: LoopConfig,
    done: Callable[[TrajectoryGroup | None], None],
) -> list[str]:
    """Plays and keeps the `wanted` episodes; gives the reasons of those that failed.

    Stops when the first of them all fail. `done` hears of each, with None for one that failed. Raises `LlmError` when
    the budget is used up, and `ScenarioError` when the world cannot tell how an episode ended.
    """
    store, kept = TrajectoryStore(file), 0
    failures: list[Trajectory] = []
    stopped: list[LlmError] = []
    slots = asyncio.Semaphore(config.concurrency)

    async def one(play: Play, task: Task, number: int) -> None:
        nonlocal kept
        async with slots:
            if stopped or (len(failures) >= _HOPELESS and not kept):
                return
            started = time.monotonic()
            # The first sample is the one that the evaluation of a training run takes.
            name = ("evaluation", task.id) if number == 0 else ("evaluation", task.id, number)
            try:
                group = await play(task, seed_of(config.seed, *name))
            except LlmError as error:  # episodes that run go on to their end: they are paid for
                stopped.append(error)
                return
        group.metrics[SECONDS] = time.monotonic() - started
        failed = next((each for each in group if each.status == "failed"), None)
        if failed is not None:
            failures.append(failed)
            return done(None)
        group.metadata |= {"task": task.model_dump(mode="json"), "sample": number, "model": model.name}
        store.append(group)  # without an await: a stop between the two would lose what was paid for
        kept += 1
        done(group)

    if wanted:
        async with model.serve() as play:
            await run_all(one(play, task, number) for task, number in wanted)
    if stopped:
        raise stopped[0]
    lost = next((each for each in failures if each.metrics.get(NO_OUTCOME)), None)
    if lost is not None:
        raise ScenarioError(
            f"the environment of the scenario cannot tell how an episode of {model.name} ended: {lost.status_reason}",
            "Mend its success or reward; they are called for every episode, also for one that was lost or truncated.",
        )
    return [str(each.status_reason) for each in failures]


_ATTEMPTS = "attempts"


def joint_groups(episodes: Mapping[str, Mapping[Sample, TrajectoryGroup]]) -> list[TrajectoryGroup]:
    """A group for each task (and agent, where an episode has several) of the attempts of all models, by model name."""
    groups: dict[tuple[str, str | None], TrajectoryGroup] = {}
    for model, samples in episodes.items():
        for (task, number), episode in samples.items():
            for member in episode:
                metadata = {**member.metadata, "model": model, "sample": number}
                bare = member.model_copy(update={"reward": None, "judgement": None, "metadata": metadata})
                group = groups.setdefault((task, member.agent), TrajectoryGroup(metadata={"task": task}))
                group.trajectories.append(bare)
    for group in groups.values():  # a digest of what the judge reads and whose it is
        group.metadata[_ATTEMPTS] = _digest(
            [
                *([m.metadata.get(name) for name in ("model", "sample", "task")] for m in group),
                *(each.model_dump(mode="json", include={"agent", "tools"}) for m in group for each in m.histories()),
                *([m.status, *(each.messages() for each in m.histories())] for m in group),
            ]
        )
    return list(groups.values())


def judged_file(judge: Judge, folder: Path) -> Path:
    """The file of the groups scored by this judge; another judge, rubric or setting has another file."""
    return folder / "judged" / f"{_digest(judge.settings)}.jsonl.zst"


def judged_before(groups: Sequence[TrajectoryGroup], file: Path) -> dict[str, TrajectoryGroup]:
    """The groups that the file has judged, by the digest of their attempts."""
    if not file.is_file():
        return {}
    wanted = {str(group.metadata[_ATTEMPTS]) for group in groups}
    known = {str(group.metadata.get(_ATTEMPTS)): group for group in TrajectoryStore(file).read()}
    return {digest: group for digest, group in known.items() if digest in wanted}


async def judge_together(
    judge: Judge, groups: Sequence[TrajectoryGroup], file: Path, done: Callable[[], None]
) -> list[TrajectoryGroup]:
    """The groups with their judgements; `done` hears of each that is judged now.

    A group that the judge could not score, or was not asked about because it stopped, is unscored with the reason, and
    not kept: the same command asks again. Raises `JudgeError` for a judge that cannot be asked.
    """
    known = judged_before(groups, file)
    store = TrajectoryStore(file)

    async def score(group: TrajectoryGroup) -> None:
        digest = str(group.metadata[_ATTEMPTS])
        try:
            judged = await judge.score(group)
        except JudgeError as error:
            if judge.stopped is None:
                raise
            known[digest] = unscored(group, error.message)
            return
        whole = judged.judgement  # identical attempts are tied, and no judge is asked about them
        tied = whole is not None and whole.status == "degenerate" and len(judged) > 1 and not whole.lost_orders
        if tied or any(member.judgement and member.judgement.score is not None for member in judged):
            store.append(judged)  # without an await: a stop between the two would lose what was paid for
        known[digest] = judged
        done()

    await run_all(score(group) for group in groups if str(group.metadata[_ATTEMPTS]) not in known)
    return [known[str(group.metadata[_ATTEMPTS])] for group in groups]
