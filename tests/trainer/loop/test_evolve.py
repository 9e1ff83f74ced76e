"""Exploration and imitation in turns, and imitation alone: who is imitated; a stopped run goes on bit for bit."""

import math
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library.returns_desk import scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import EvolveConfig, SftConfig
from gavel.trainer.loop.evolve import EXPLORED, EvolveObserver, Iteration, evolve
from gavel.trainer.loop.imitation import choose_best_members, imitate, imitation_plan
from gavel.trainer.loop.watchdog import LoopError
from gavel.trainer.runs.run_directory import RunDirectoryError
from tests.trainer.conftest import a_model, adapter_file, registered

SMALL = EvolveConfig(iterations=2, tasks=18, attempts=2, evaluation_tasks=2, max_tokens=32, above=-1.0)
TRAIN = SftConfig(learning_rate=1e-3, batch_size=16)


class StopError(Exception):
    """The user stops the run."""


def assert_same_adapter(runs: Path, *names: str) -> None:
    """At step 6, bit for bit."""
    whole, stopped = (load_file(adapter_file(runs, 6, name)) for name in names)
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


class Stopping(EvolveObserver):
    """Stops at the n-th thing that it is told of a kind."""

    def __init__(self, kind: str, number: int) -> None:
        self._kind, self._left = kind, number

    def doing(self, what: str) -> None:
        self._left -= what == self._kind
        if not self._left:
            raise StopError

    def advanced(self, done: int, total: int) -> None:
        self.doing("advanced")

    def learned(self, iteration: Iteration, result: TrainResult) -> None:
        self.doing("learned")


@pytest.mark.slow
async def test_a_restart_begins_with_the_adapter_that_the_run_began_with(tmp_path: Path) -> None:
    shown = demonstrations(3)
    async with registered(tmp_path, "origin") as (origin, backend):
        await origin.train_sft(shown, TRAIN)
        start = str(tmp_path / "tests" / "origin" / "checkpoints" / "000001")
        follower = a_model("follower").model_copy(update={"from_checkpoint": start})
        await follower.register(backend)
        await follower.train_sft(shown, TRAIN)
        await follower.train_sft(shown, TRAIN.model_copy(update={"restart": True}))
        first, second = (load_file(adapter_file(tmp_path, step, "follower")) for step in (1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
async def test_every_iteration_explores_other_tasks_and_learns_base_data_and_what_it_kept(tmp_path: Path) -> None:
    base = demonstrations(3)
    async with registered(tmp_path) as (model, backend):
        found = await evolve(model, scenario, base=base, config=SMALL, train=TRAIN)
        explored = [
            {each.metadata["task"]["id"] for group in await backend.logged(model, EXPLORED, at) for each in group}
            for at in (found[0].last_step, found[1].last_step)
        ]
        kept = backend.checkpoints(model)
    assert [(each.number, each.explored, each.imitated) for each in found] == [(0, 0, 3), (1, 36, 39), (2, 36, 39)]
    assert [each.last_step for each in found] == [1, 4, 7]
    assert (len(explored[0]), len(explored[1])) == (18, 18)
    assert explored[0] != explored[1]
    assert all(each.success is not None for each in found)
    assert kept == [1, 4, 7]  # the policies of the iterations, and no others


@pytest.mark.slow
@pytest.mark.thorough
async def test_a_run_that_was_stopped_anywhere_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path) -> None:
    stops = [
        Stopping("advanced", 17),  # of 18 groups: 16 are stored
        Stopping("learned", 2),
        Stopping("evaluation on held-out tasks", 1),
        Stopping("exploring, iteration 2", 1),
    ]
    for name, at in (("whole", []), ("stopped", stops)):
        for stop in at:
            async with registered(tmp_path, name) as (model, backend):
                with pytest.raises((StopError, ExceptionGroup)):
                    await evolve(model, scenario, config=SMALL, train=TRAIN, observer=stop)
        async with registered(tmp_path, name) as (model, backend):
            found = await evolve(model, scenario, config=SMALL, train=TRAIN)
            assert [each.number for each in found] == [0, 1, 2]
            more = await evolve(model, scenario, config=SMALL, train=TRAIN)  # it is finished
            assert more == found
            explored = await backend.logged(model, EXPLORED, 0)
            assert len({group.trajectories[0].metadata["task"]["id"] for group in explored}) == len(explored) == 18
    assert_same_adapter(tmp_path, "whole", "stopped")


@pytest.mark.slow
async def test_the_judge_ranks_the_attempts_at_a_task_and_a_threshold_keeps_all_above_it(tmp_path: Path) -> None:
    judge = Judge("stand-in", rubric=scenario.rubric)
    ranked = SMALL.model_copy(update={"reward": {"judge": 1.0}, "above": None, "iterations": 1, "attempts": 4})
    succeeded = SMALL.model_copy(update={"above": None, "iterations": 1, "attempts": 4})
    seen = Mock(EvolveObserver)
    for name, config in (("ranked", ranked), ("succeeded", succeeded)):
        async with registered(tmp_path, name) as (model, _):
            await evolve(model, scenario, judge=judge, config=config, train=TRAIN, observer=seen)
    best, all_above = (call.args[1].trajectories for call in seen.chosen.call_args_list)
    ids = [member.metadata["task"]["id"] for member in best]
    assert len(set(ids)) == len(ids) > 9  # one of a task; a task whose attempts are the same word for word has none
    assert all(member.judgement is not None for member in best)
    assert all_above
    assert all(member.metrics["success"] for member in all_above)


@pytest.mark.slow
async def test_a_run_without_anyone_to_imitate_says_what_to_change_and_other_settings_are_refused(tmp_path):
    none = SMALL.model_copy(update={"above": 2.0})
    async with registered(tmp_path) as (model, _):
        with pytest.raises(LoopError, match="nothing to imitate") as error:
            await evolve(model, scenario, config=none, train=TRAIN)
        assert "--above" in error.value.remedy
        for other in ({"config": SMALL}, {"config": none.model_copy(update={"seed": 1})}, {"base": demonstrations(1)}):
            with pytest.raises(RunDirectoryError, match="was begun with"):
                await evolve(model, scenario, train=TRAIN, **{"config": none} | other)


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 12), st.integers(0, 3))
def test_every_epoch_is_a_pass_over_everyone_in_batches(count: int, epochs: int, batch_size: int, seed: int) -> None:
    plan = imitation_plan(count, epochs, batch_size, seed)
    steps = -(-count // batch_size)
    assert len(plan) == epochs * steps
    for epoch in range(epochs):
        batches = plan[epoch * steps : (epoch + 1) * steps]
        assert sorted(at for batch in batches for at in batch) == [*range(count)]
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (steps - 1)
    assert plan == imitation_plan(count, epochs, batch_size, seed)
    assert imitation_plan(20, 1, 20, seed) != imitation_plan(20, 1, 20, seed + 1)


def demonstrations(count: int) -> list[Trajectory]:
    said = [{"role": "user", "content": "May I return order {}?"}, {"role": "assistant", "content": "Yes, you may."}]
    numbered = ([{**each, "content": each["content"].format(number)} for each in said] for number in range(count))
    return [Trajectory(messages_and_choices=messages) for messages in numbered]


CONFIG = SftConfig(learning_rate=1e-3, batch_size=2, epochs=2)


@pytest.mark.slow
async def test_a_run_that_was_stopped_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path) -> None:
    shown = demonstrations(5)
    for name, stops in (("whole", 0), ("stopped", 2)):
        for attempt in range(stops + 1):
            results: list[TrainResult] = []
            async with registered(tmp_path, name) as (model, backend):
                if attempt < stops:
                    with pytest.raises(StopError):
                        await imitate(model, shown, CONFIG, stepped=Mock(side_effect=StopError))
                    continue
                await imitate(model, shown, CONFIG, stepped=results.append)
                assert await model.get_step() == 6
                rates = [row["learning_rate"] for row in backend.history(model, "sft")]
        assert [result.step for result in results] == [*range(1 + stops, 7)]
        assert rates == pytest.approx([1e-3 * rate for rate in (1 / 4, 1 / 2, 3 / 4, 1, 2 / 3, 1 / 3)])
        assert results[-1].metrics["loss"] < 12
    assert_same_adapter(tmp_path, "whole", "stopped")


scores = st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@given(st.lists(st.lists(scores, max_size=6), max_size=5), st.integers(1, 4), scores)
def test_everyone_is_chosen_or_counted_and_nobody_left_behind_scored_higher(rewards, best, above):
    said = [{"role": "user", "content": "?"}]
    groups = [TrajectoryGroup(Trajectory(messages_and_choices=said, reward=each) for each in row) for row in rewards]
    chosen = choose_best_members(groups, best, above)
    expected: list[Trajectory] = []
    for each in groups:
        places = [at for at, one in enumerate(each) if one.reward is not None]
        places.sort(key=lambda at: (-(each.trajectories[at].reward or 0.0), at))
        members = [each.trajectories[at] for at in places[:best]]
        expected += [one for one in members if (one.reward or 0.0) > (-math.inf if above is None else above)]
    assert [id(one) for one in chosen.trajectories] == [id(one) for one in expected]
    assert chosen.scored + chosen.unscored == sum(map(len, rewards))
    assert chosen.scored == len(chosen.trajectories) + chosen.too_low + chosen.not_best
