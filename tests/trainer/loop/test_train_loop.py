"""The training loop: it goes on after a kill, and stops at an outage instead of hiding it."""

import json
import re
from copy import copy
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from gavel.judge.audit.health import judge_health
from gavel.judge.judge import Judge
from gavel.judge.panel.standard_errors import _DOUBT
from gavel.llm.budget import Budget
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.loop.evaluation import evaluate, measure
from gavel.trainer.loop.judge_alarms import JudgeAlarm
from gavel.trainer.loop.train_loop import ALARMS, CUT, TIMES, LoopError, Observer, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.run_directory import RunDirectoryError
from tests.judge.groups import broken, never
from tests.trainer.conftest import registered

pytestmark = pytest.mark.slow

scenario = find_scenario("returns_desk")
PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
DOCUMENTED = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))


def short(**changed: Any) -> LoopConfig:
    """Two steps of two groups of three, measured before and after."""
    small: dict[str, Any] = {"steps": 2, "tasks_per_step": 2, "group_size": 3, "max_tokens": 32}
    return LoopConfig(**small | {"evaluate_every": 9, "evaluation_tasks": 2, "final_tasks": 2} | changed)


def fails(trajectory: Trajectory) -> float:
    raise LookupError("no such key")


POOR = {"models": "stand-in", "rubric": scenario.rubric, "budget": Budget(max_tokens=6000), "concurrency": 1}


@pytest.mark.parametrize(
    ("judge", "reward", "said"),
    [
        ({"models": broken}, {"judge": 1.0}, "the judge scored no group"),
        (POOR, {"judge": 1.0}, r"(?s)budget is used up.*Raise the budget.*resumes after the last"),
        (None, {"hand": 1.0}, "no member of this step has a reward.*no such key"),
    ],
)
async def test_an_outage_stops_the_run_with_the_reason_before_what_is_left_is_trained(tmp_path, judge, reward, said):
    failing = copy(scenario)
    failing.hand_reward = fails
    loop = short(tasks_per_step=4, group_size=4, max_tokens=24, reward=reward)
    async with registered(tmp_path, "outage") as (model, _):
        with pytest.raises(LoopError, match=said):
            await train_scenario(model, failing, judge and Judge(**judge), loop, TrainConfig())
        assert await model.get_step() == 0


async def test_rewards_are_the_judges_scores_and_another_reward_is_another_experiment(tmp_path: Path) -> None:
    loop = short(steps=1, group_size=4, max_tokens=48)
    judge = Judge("stand-in", rubric=scenario.rubric)
    async with registered(tmp_path, "judged") as (model, backend):
        await train_scenario(model, scenario, judge, loop, TrainConfig())
        (row,) = backend.history(model, "train")
        times = backend.history(model, TIMES)
        groups = list(TrajectoryStore(tmp_path / "tests" / "judged" / "trajectories" / "train" / "000001.jsonl.zst"))
        for other in ({"judge": 0.5}, {"judge": 1.0, "hand": 0.5}, {"hand": 1.0}):
            with pytest.raises(RunDirectoryError, match="reward"):
                await train_scenario(model, scenario, judge, loop.model_copy(update={"reward": other}), TrainConfig())
        pinned = tmp_path / "tests" / "judged" / "experiment.json"
        begun = pinned.read_text()
        pinned.unlink()  # the checkpoint keeps a copy
        with pytest.raises(RunDirectoryError, match="advantage"):
            await train_scenario(model, scenario, judge, loop, TrainConfig(advantage="rank"))
        assert not pinned.exists()
        await train_scenario(model, scenario, judge, loop, TrainConfig())
        assert pinned.read_text() == begun
        told = copy(scenario)
        told.tasks = lambda split="train": [t.model_copy(update={"reference": "x"}) for t in scenario.tasks(split)]
        with pytest.raises(RunDirectoryError, match="criteria of tasks"):
            await train_scenario(model, told, judge, loop, TrainConfig())
    members = [member for group in groups for member in group if member.judgement and member.reward is not None]
    assert members
    assert [member.reward for member in members] == [member.judgement.score for member in members if member.judgement]
    assert row["reward"] == row["judge_score"] == pytest.approx(sum(m.reward or 0.0 for m in members) / len(members))
    assert not any(name.startswith("reward/") for name in row)
    assert 0 < row["tokens_trained"] < row["tokens_unique"] == row["tokens_forwarded"]
    assert row["judge/calls"] > 0
    (spent,) = (each for each in times if "train" in each)
    assert spent["time_share/judge"] == pytest.approx(spent["judge"] / spent["whole"])
    assert spent["tokens_per_second/trained"] * spent["train"] == pytest.approx(row["tokens_trained"])
    undocumented = {name for each in [row, *times] for name in each if name not in scenario.measures} - DOCUMENTED
    assert {name for name in undocumented if not name.startswith(("left_out/", "token_mismatch/"))} <= {"success"}


async def one_step_after_another(
    model: TrainableModel, scenario: Scenario, judge: Judge, loop: LoopConfig, config: TrainConfig
) -> None:
    """The training loop in its plainest form: roll out all groups, judge them, train, evaluate."""

    async def point(tasks: int) -> None:
        measured = await evaluate(model, scenario, tasks, loop)
        await model.log([TrajectoryGroup([trajectory]) for trajectory in measured.trajectories], "held_out")

    await point(loop.final_tasks)
    for step in range(loop.steps):
        groups = []
        for task in scenario.sample("train", loop.tasks_per_step, seed=loop.seed, step=step):
            seeds = [seed_of(loop.seed, "train", step, task.id, member) for member in range(loop.group_size)]
            members = [await rollout(model, scenario, task, max_tokens=loop.max_tokens, seed=seed) for seed in seeds]
            for member in members:
                member.metrics |= measure(scenario, member)
            groups.append(await judge.score(TrajectoryGroup(members)))
        await model.train(groups, config, metrics=judge_health(groups))
        if (step + 1) % loop.evaluate_every == 0 or step + 1 == loop.steps:
            await point(loop.final_tasks if step + 1 == loop.steps else loop.evaluation_tasks)


async def test_without_staleness_the_loop_gives_what_one_step_after_another_gives(tmp_path: Path) -> None:
    config = TrainConfig(learning_rate=1e-3)
    loop = short(steps=3, group_size=4, max_tokens=48, concurrency=1, evaluate_every=2, final_tasks=3)
    rows: list[list[dict[str, Any]]] = []
    files: list[bytes] = []
    groups: list[list[list[Any]]] = []
    for train in (one_step_after_another, train_scenario):
        async with registered(tmp_path, train.__name__) as (model, backend):
            await train(model, scenario, Judge("stand-in", rubric=scenario.rubric), loop, config)
            history = backend.history(model, "train") + backend.history(model, "held_out")
            rows.append([{name: value for name, value in row.items() if name not in ("time", CUT)} for row in history])
        run = tmp_path / "tests" / model.name
        files.append((run / "checkpoints" / "000003" / "adapter_model.safetensors").read_bytes())
        stored = [group for file in sorted((run / "trajectories").rglob("*.zst")) for group in TrajectoryStore(file)]
        groups.append([[(m.reward, [turn.token_ids for turn in m.choices()]) for m in group] for group in stored])
    assert rows[0] == rows[1]
    assert any(row["groups_trained"] for row in rows[0] if row["split"] == "train")
    assert groups[0] == groups[1]
    assert files[0] == files[1]


async def test_a_run_that_refills_trains_full_batches_and_goes_on_bit_by_bit(tmp_path: Path) -> None:
    """Groups of a task of even length are equal; whoever resumes draws the same others in their place."""
    scenario, config = copy(find_scenario("returns_desk")), TrainConfig(learning_rate=1e-3)

    def reward(trajectory: Trajectory) -> float:
        return float(len(trajectory.messages()[-1].get("content") or "")) * (
            len(trajectory.messages()[1]["content"]) % 2
        )

    scenario.hand_reward = reward
    outcomes = []
    for name, ends in (("through", [2]), ("resumed", [1, 2])):
        for steps in ends:
            loop = short(steps=steps, concurrency=1, refill=2, reward={"hand": 1})
            async with registered(tmp_path, name) as (model, backend):
                await train_scenario(model, scenario, Judge(never), loop, config)
                history = backend.history(model, "train")
        for row in history:
            assert row["reward"] == row["reward/hand"]
            assert not any(name.startswith("judge") for name in row)
            refilled, unfilled = row["refill/groups"], row["refill/unfilled"]
            assert row["groups_trained"] == 2 - unfilled
            assert row.get("left_out/no_signal", 0) == refilled + unfilled
            assert refilled <= 4
            assert set(row) - scenario.measures.keys() - DOCUMENTED <= {"success", "left_out/no_signal"}
        weights = (tmp_path / "tests" / name / "checkpoints" / "000002" / "adapter_model.safetensors").read_bytes()
        outcomes.append((weights, [{key: value for key, value in row.items() if key != "time"} for row in history]))
    assert sum(row["refill/groups"] for row in outcomes[0][1]) > 0
    assert outcomes[0] == outcomes[1]


async def test_the_noise_of_the_first_steps_votes_is_settled_for_later_steps_and_kept(tmp_path: Path) -> None:
    loop = short(tasks_per_step=1, group_size=4, max_tokens=8)

    async def unsure(messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        labels = re.findall(r"trajectory (\w+)\n", messages[1]["content"])
        random = Random(messages[1]["content"])
        return json.dumps({label: random.random() for label in labels})

    seen = Mock(Observer)
    async with registered(tmp_path, "noise") as (model, backend):
        await train_scenario(model, scenario, Judge(unsure), loop, TrainConfig(), seen)
        longer = loop.model_copy(update={"steps": 3})
        await train_scenario(model, scenario, Judge(unsure), longer, TrainConfig(), seen)
        (prior,) = backend.history(model, "noise_prior")
    assert prior["variance"] > 0
    judgements = [
        [member.judgement for group in call.args[0].groups for member in group] for call in seen.stepped.call_args_list
    ]
    (own,), *later = ({each.degrees_of_freedom for each in step if each} for step in judgements)
    assert own == pytest.approx(prior["df"] + _DOUBT)
    assert len(later) == 2
    assert all(each and each > own for (each,) in later)


async def test_an_alarm_is_told_and_stored_once_and_a_run_that_stops_at_it_goes_on_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def alarms(history: list[dict[str, Any]]) -> list[JudgeAlarm]:
        looked.append(len(history))
        assert history[-1]["health/characters"] > 0
        return [JudgeAlarm.HACKED] if len(history) >= 2 else []

    monkeypatch.setattr("gavel.trainer.loop.train_loop.judge_alarms", alarms)

    loop, seen = short(steps=4, tasks_per_step=1, on_alarm="stop"), Mock(Observer)
    async with registered(tmp_path, "alarmed") as (model, backend):
        with pytest.raises(LoopError, match=r"stopped after step 2: .*success does not"):
            await train_scenario(model, scenario, Judge("constant"), loop, TrainConfig(), seen)
        assert await model.get_step() == 2
    async with registered(tmp_path, "alarmed") as (model, backend):
        going_on = loop.model_copy(update={"on_alarm": "tell"})
        await train_scenario(model, scenario, Judge("constant"), going_on, TrainConfig(), seen)
        assert [(row["step"], row["alarm"]) for row in backend.history(model, ALARMS)] == [(2, "hacked")]
    seen.alarmed.assert_called_once_with(2, JudgeAlarm.HACKED)
    assert looked == [1, 2, 3, 4]


async def test_a_scenario_without_success_has_wins_against_the_base_as_its_learning_curve(tmp_path: Path) -> None:
    scenario = copy(find_scenario("returns_desk"))
    scenario.success = None
    evaluated = {"evaluate_every": 1, "evaluation_tasks": 6, "final_tasks": 8}
    loop = short(group_size=4, max_tokens=48, keep_checkpoints=1, **evaluated)
    judge = Judge("stand-in", rubric=scenario.rubric)
    async with registered(tmp_path, "judged") as (model, backend):
        await train_scenario(model, scenario, judge, loop, TrainConfig(learning_rate=2e-3))
        curve = backend.history(model, "held_out")
        assert [row["step"] for row in curve] == [0, 1, 2]
        assert ["wins/base" in row for row in curve] == [False, True, True]
        assert ["wins/best" in row for row in curve] == [False, False, True]
        assert ["judge/calls" in row for row in curve] == [False, True, True]
        for step, tasks in ((1, 6), (2, 8)):
            (logged,) = [await backend.logged(model, "held_out", step)]
            wins = [member.metrics["wins/base"] for group in logged for member in group]
            assert len(wins) == tasks
            assert curve[step]["wins/base"] == sum(wins) / tasks
            assert set(wins) <= {0.0, 0.5, 1.0}
        assert backend.checkpoints(model) == [1, 2]  # 1 was the best when 2 was made
        assert await backend.logged(model, "held_out", 7) == []
