"""Prefetched groups are never too old nor more than allowed; how a loop ends when a stage hangs; turn limits."""

import asyncio
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError

from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library.returns_desk import scenario
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import Endpoint, TrainResult
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.engines.protocol import EngineError, deadline
from gavel.trainer.loop import group_maker
from gavel.trainer.loop import watchdog as watchdog_module
from gavel.trainer.loop.prefetch import GroupSlot, RolloutPrefetcher
from gavel.trainer.loop.train_loop import LoopError, Observer, StepReport, train_scenario
from gavel.trainer.loop.watchdog import Watchdog, check_turn_limits, stall_seconds, with_turn_limit
from gavel.trainer.model import TrainableModel
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import a_group, a_model, full_logprobs, registered


def filled_one_after_the_other(signals: list[bool], further: list[bool], bound: int) -> tuple[list[int], int, int]:
    """DAPO's loop in its plainest form: the numbers of the groups of a step, how many are further, and unfilled."""
    groups, missing, refills = list(range(len(signals))), signals.count(False) if bound else 0, 0
    while missing and refills < bound:
        groups.append(len(signals) + refills)
        missing -= further[refills]
        refills += 1
    return groups, refills, missing


@given(
    seed=st.integers(0, 2**32),
    signals=st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[st.booleans()] * n), min_size=1, max_size=8)),
    further=st.lists(st.booleans(), min_size=8, max_size=8),
    bound=st.integers(0, 8),
    max_staleness=st.integers(0, 3),
    concurrency=st.integers(1, 20),
)
def test_whatever_the_delays_no_group_is_too_old_and_those_without_a_signal_are_replaced_up_to_the_bound(
    seed, signals, further, bound, max_staleness, concurrency
):
    chance, per_step, live, running = random.Random(seed), len(signals[0]), 0, 0
    started: list[int] = []

    async def some_time() -> None:
        for _ in range(chance.choice([0, 1, 3, 10, 60])):
            await asyncio.sleep(0)

    async def run() -> None:
        nonlocal live
        limiter = asyncio.Semaphore(concurrency)

        async def make(slot: GroupSlot) -> list[TrajectoryGroup]:
            nonlocal running
            step, number = divmod(slot.position, per_step)
            signal = signals[step % len(signals)][number]
            if slot.refill is None:
                started.append(slot.position)
            else:
                number, signal = per_step + slot.refill, further[slot.refill]
            running += 1
            try:
                async with limiter:
                    slot.rollout_starts()
                    version = live
                    await some_time()
            finally:
                running -= 1
            found = {"id": (slot.position, slot.refill), "number": number, "signal": signal or not bound}
            return [TrajectoryGroup([Trajectory(policy_version=version)], metadata=found)]

        trained: list[Any] = []
        plan = {"first": 0, "last": len(signals), "per_step": per_step, "max_staleness": max_staleness}
        plan |= {"refills": bound, "has_signal": lambda group: group.metadata["signal"]}
        async with (
            asyncio.timeout(HANG_SECONDS),
            RolloutPrefetcher(make, watchdog=Watchdog(HANG_SECONDS), **plan) as prefetcher,
        ):
            for step, own in enumerate(signals):
                live = step
                prefetcher.advance(step)
                assert len(prefetcher.tallies) <= (max_staleness + 1) * per_step
                batch = await prefetcher.batch()
                assert all(0 <= step - each.policy_version <= max_staleness for group in batch.groups for each in group)
                with_signal = sum(group.metadata["signal"] for group in batch.groups)
                assert with_signal + batch.unfilled == per_step
                assert len(batch.groups) == per_step + batch.refills
                assert batch.refills <= bound
                if not max_staleness:
                    found = [group.metadata["number"] for group in batch.groups], batch.refills, batch.unfilled
                    assert found == filled_one_after_the_other([*own], further, bound)
                trained += [tuple(group.metadata["id"]) for group in batch.groups]
                await some_time()
                assert running <= (max_staleness + 1) * per_step
        assert len(set(trained)) == len(trained)
        assert sorted(started) == [*range(len(started))], "the plan is followed position by position"
        assert max_staleness or started == [position for position, refill in trained if refill is None]
        assert not running

    asyncio.run(run())


SMALL: dict[str, Any] = {"tasks_per_step": 2, "group_size": 4, "max_tokens": 48}
SMALL |= {"evaluate_every": 100, "evaluation_tasks": 2, "final_tasks": 2}
RATE = TrainConfig(learning_rate=1e-3)
JUDGE = Judge("stand-in", rubric=scenario.rubric)


@pytest.mark.slow
async def test_a_step_is_trained_while_the_next_ones_rollouts_and_judging_go_on(tmp_path, monkeypatch):
    judged, further = 0, asyncio.Event()
    score = Judge.score

    async def counted(self: Judge, group: TrajectoryGroup, **options: Any) -> TrajectoryGroup:
        nonlocal judged
        scored = await score(self, group, **options)
        judged += 1
        if judged == 4:
            further.set()
        return scored

    class Slow(LocalBackend):
        async def train(self, *given: Any, **named: Any) -> TrainResult:
            await further.wait()  # for ever, were the four groups not made before the first step is trained
            return await super().train(*given, **named)

    monkeypatch.setattr(Judge, "score", counted)
    model = a_model()
    async with asyncio.timeout(HANG_SECONDS), Slow(tmp_path, versions=2) as backend:
        await model.register(backend)
        await train_scenario(model, scenario, JUDGE, LoopConfig(steps=3, max_staleness=1, **SMALL), RATE)
        rows = backend.history(model, "train")
        evaluated = [row["step"] for row in backend.history(model, "held_out")]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["staleness/max"] for row in rows] == [0.0, 1.0, 1.0]
    assert [row["left_out/stale"] for row in rows] == [0.0, 0.0, 0.0]
    assert evaluated == [0, 3]
    assert any(row["groups_trained"] for row in rows)


@pytest.mark.slow
async def test_a_conversation_keeps_its_adapter_across_a_publication(tmp_path: Path, embedded_base) -> None:
    task = scenario.tasks("train")[0]
    fixed = {"tools": scenario.toolbox.schemas, "temperature": 1.0, "seed": 3, "max_completion_tokens": 48}

    async def say(client: AsyncOpenAI, name: str, messages: list[Message]) -> Any:
        return (await client.chat.completions.create(model=name, messages=messages, **fixed)).choices[0]

    def gap(choice: Any) -> float:
        """Between the sampler and the base, which is the policy of step 0."""
        prompt = choice.prompt_token_ids
        expected = full_logprobs(embedded_base, prompt + choice.token_ids)[len(prompt) - 1 :].tolist()
        return max(abs(one.logprob - other) for one, other in zip(choice.logprobs.content, expected, strict=True))

    async def learn() -> None:
        group = await a_group(model, [0.0, 1 / 3, 2 / 3, 1.0])
        assert (await model.train([group], TrainConfig(learning_rate=2e-2))).trained

    async with registered(tmp_path, versions=2) as (model, _):
        client, began_with = model.openai_client(), model.get_inference_name()
        messages: list[Any] = [{"role": "system", "content": scenario.system}, {"role": "user", "content": task.user}]
        first = await say(client, began_with, messages)
        (call,) = first.message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "lamp"}
        messages += [first.message.model_dump(exclude_none=True), result]
        await learn()
        second, live = await asyncio.gather(say(client, began_with, messages), say(client, "clerk", messages))
        before = first.prompt_token_ids + first.token_ids
        assert second.prompt_token_ids[: len(before)] == before
        assert (first.policy_version, second.policy_version, live.policy_version) == (0, 0, 1)
        assert max(gap(first), gap(second)) < 1e-4
        assert gap(live) > 1e-2
        await learn()
        with pytest.raises(BadRequestError, match="live: clerk, clerk@1, clerk@2") as gone:
            await say(client, began_with, messages)
        assert gone.value.code == "model_not_found"


@pytest.mark.slow
async def test_an_engine_that_dies_ends_the_run_with_its_own_error(tmp_path: Path) -> None:
    class Deadly(Observer):
        def stepped(self, report: StepReport) -> None:
            backend._run(model)._engine.close()

    async with asyncio.timeout(HANG_SECONDS), registered(tmp_path, versions=2) as (model, backend):
        loop = LoopConfig(steps=9, max_staleness=1, **SMALL)
        with pytest.raises((EngineError, LoopError), match=r"the engine (has been|was) closed"):
            await train_scenario(model, scenario, JUDGE, loop, RATE, Deadly())


def a_ledger(steps: int = 0) -> Any:
    """A backend that trains nothing and keeps its `rows` in memory."""
    backend: Any = create_autospec(LocalBackend, instance=True)
    backend.rows, backend.steps = [], steps

    async def train(model: Any, groups: list[TrajectoryGroup], config: TrainConfig, metrics: Any = None) -> TrainResult:
        await asyncio.sleep(0)
        backend.steps += 1
        backend.rows.append({"step": backend.steps, "groups": groups, **(metrics or {})})
        return TrainResult(backend.steps, True)

    backend.train = train
    backend.step = lambda model: backend.steps
    backend.versions.return_value = 9
    backend.endpoint.return_value = Endpoint("http://127.0.0.1:9/v1", "none")
    backend.checkpoints.return_value = backend.history.return_value = []
    backend.log.return_value = {}
    return backend


DESK = Scenario(
    name="desk", system="Answer.", tools=[], tasks=[Task(id=f"{n}", user=f"question {n}") for n in range(8)], held_out=0
)


async def answer(model: TrainableModel, scenario: Scenario, task: Task, *, seed: int, **_: Any) -> Trajectory:
    """What a rollout gives, without a model."""
    await asyncio.sleep(0)
    said: Message = {"role": "assistant", "content": f"answer {seed}"}
    return Trajectory(messages_and_choices=[{"role": "user", "content": task.user}, said])


async def train_without_a_model(
    monkeypatch: pytest.MonkeyPatch, ledger: Any, one_rollout: Any, judge: Judge | None = None, **loop: Any
) -> None:
    monkeypatch.setattr(group_maker, "rollout", one_rollout)
    model = a_model()
    await model.register(ledger)
    settings: dict[str, Any] = {"steps": 3, "tasks_per_step": 2, "group_size": 2} | loop
    config = LoopConfig(**settings)
    async with asyncio.timeout(HANG_SECONDS):
        await train_scenario(model, DESK, judge or Judge("constant"), config, TrainConfig())


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ("rollout", r"rollout: 2 of 2 rollouts of task \d for \d+ s, .*; judging: nothing"),
        ("judge", r"rollout: nothing; judging: {groups} groups for \d+ s"),
    ],
)
async def test_a_stage_that_stands_still_ends_the_run_which_names_it(monkeypatch, stage, told, max_staleness):
    ended: list[None] = []

    async def stuck(*given: Any, **named: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(None)

    rolling, judge = (stuck, None) if stage == "rollout" else (answer, Judge(stuck))
    loop = {"max_staleness": max_staleness, "stall_seconds": 1, "concurrency": 8}
    with pytest.raises(LoopError, match=told.format(groups=2 * (max_staleness + 1))) as error:
        await train_without_a_model(monkeypatch, a_ledger(), rolling, judge, **loop)
    assert "training: waiting for 2 more groups" in error.value.message
    assert len(ended) == 4 * (max_staleness + 1), "all were cancelled"


@pytest.mark.slow
async def test_a_slow_group_is_overtaken_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = DESK.sample("train", 2, seed=0, step=0)[0].id
    abandoned: list[str] = []

    async def one_is_slow(model: TrainableModel, scenario: Scenario, task: Task, **named: Any) -> Trajectory:
        if model.backend.step(model) == 0 and task.id == slow:
            try:
                await asyncio.Event().wait()
            finally:
                abandoned.append(task.id)
        return await answer(model, scenario, task, **named)

    ledger = a_ledger()
    await train_without_a_model(monkeypatch, ledger, one_is_slow, max_staleness=1, steps=4)
    assert [row["left_out/stale"] for row in ledger.rows] == [0, 0, 1, 0]
    assert [len(row["groups"]) for row in ledger.rows] == [2, 2, 2, 2]
    assert abandoned == [slow, slow]


@pytest.mark.slow
async def test_tasks_and_seeds_depend_on_the_position_in_the_plan_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked_from(step: int, **loop: Any) -> set[tuple[str, int]]:
        asked: set[tuple[str, int]] = set()

        async def noted(model: TrainableModel, scenario: Scenario, task: Task, **named: Any) -> Trajectory:
            asked.add((task.id, named["seed"]))
            return await answer(model, scenario, task, **named)

        await train_without_a_model(monkeypatch, a_ledger(step), noted, **loop)
        return asked

    in_turn = await asked_from(0)
    assert await asked_from(0, max_staleness=1) == in_turn
    assert await asked_from(0, max_staleness=2) == in_turn
    assert await asked_from(2, max_staleness=1) == await asked_from(2) < in_turn


async def test_overlap_needs_a_backend_that_serves_the_earlier_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoopError, match=r"needs 10 steps' adapters at once; the backend serves 9(?s:.*)versions=10"):
        await train_without_a_model(monkeypatch, a_ledger(), answer, max_staleness=9)


async def test_a_run_that_moves_may_take_longer_than_a_stall(monkeypatch):
    stall, now = 0.1, time.monotonic()
    monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: now))
    watchdog = Watchdog(stall)

    async def run() -> str:
        nonlocal now
        for _ in range(5):
            now += 0.6 * stall
            with watchdog.during("judging", "groups"):
                await asyncio.sleep(1.5 * stall)  # the guard looks meanwhile
        return "done"

    assert await watchdog.guard(run()) == "done"


async def test_a_run_ends_with_its_guard_and_work_that_will_not_end_is_left_behind(monkeypatch):
    monkeypatch.setattr(watchdog_module, "_GRACE", 0.1)
    cancelled, let_go = [], asyncio.Event()

    async def deaf() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                cancelled.append(None)

    with pytest.raises(LoopError, match="nothing has happened"):
        await Watchdog(0.1).guard(deaf())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await Watchdog(HANG_SECONDS).guard(deaf())
    assert len(cancelled) == 2
    let_go.set()


def test_a_run_waits_as_long_as_its_longest_turn_may_take_unless_told_otherwise():
    assert stall_seconds(LoopConfig()) == 1800
    assert stall_seconds(LoopConfig(max_tokens=32_768)) == deadline(32_768) > 1800
    assert stall_seconds(LoopConfig(max_tokens=32_768, stall_seconds=5)) == 5


def test_rollouts_get_the_limit_of_the_last_step_that_was_reached_and_wrong_limits_are_refused() -> None:
    limits, own = {20: 20, 0: 10}, scenario.max_turns
    found = [with_turn_limit(scenario, limits, step).max_turns for step in (0, 19, 20, 1000)]
    assert found == [10, 10, 20, 20]
    assert with_turn_limit(scenario, {5: 2}, 3).max_turns == own == scenario.max_turns
    assert with_turn_limit(scenario, {0: 2}, 3).tasks("held_out") == scenario.tasks("held_out")
    counted = Scenario("own", rollout=answer, tasks=[Task(user="Hello")])
    with pytest.raises(LoopError, match="rollout of its own"):
        check_turn_limits(counted, {0: 2})
    check_turn_limits(counted, {})
    with pytest.raises(ScenarioError, match="no limit"):
        scenario.with_max_turns(0)
    for wrong in ({0: 0}, {-1: 3}):
        with pytest.raises(ValueError, match="turn_limits"):
            LoopConfig(turn_limits=wrong)
