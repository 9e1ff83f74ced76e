"""`gavel compare` and `gavel.compare`: cells, what is refused, and how a killed comparison goes on."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.cli.compare import Cell, plan_cells, run_comparison, settings_of
from gavel.cli.training import trainable
from gavel.scenarios.library.returns_desk import scenario as desk
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.trainer.loop.experiment import describe_run
from gavel.trainer.model_spec import describe_model
from gavel.trainer.runs.run_directory import FORMAT_VERSION
from gavel.trainer.runs.run_listing import is_running
from tests.forked import gavel as run_gavel
from tests.forked import succeed
from tests.limits import HANG_SECONDS, wait_until

SETTINGS = "--seeds 1 --steps 2 --evaluate-every 1 --tasks 2 --group-size 2 --evaluation-tasks 4 --final-tasks 4"
DESK = "returns_desk"
SMALL = [DESK, "--rewards", "hand,constant", *SETTINGS.split()]


@pytest.mark.slow
@pytest.mark.thorough
def test_a_comparison_that_was_killed_goes_on_and_runs_nothing_twice(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "compare" / "returns_desk"
    first = subprocess.Popen(
        [sys.executable, "-m", "gavel", "compare", *SMALL, "--parallel", "1"],
        cwd=tmp_path,
        env=os.environ | {"GAVEL_RUNS": "runs"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    hand = place / "hand-2-steps-seed-0"
    try:
        wait_until(lambda: (hand / "metrics.jsonl").exists())
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(HANG_SECONDS)
    wait_until(lambda: not is_running(hand))  # the run ends with the process that started it
    done = succeed("compare", *SMALL, cwd=tmp_path, GAVEL_RUNS="runs")
    assert "hand - constant" in done.stdout
    written = (hand / "metrics.jsonl").read_text()
    again = run_gavel("compare", *SMALL, cwd=tmp_path, GAVEL_RUNS="runs")
    assert "2 finished before" in again.stdout
    assert (hand / "metrics.jsonl").read_text() == written
    figures = json.loads((place / "comparison.json").read_text())
    assert [list(arm["runs"][0]["heldout_success"]) for arm in figures["arms"]] == [["0", "1", "2"]] * 2
    assert (hand / "report.html").is_file()


def test_a_dry_run_tells_what_the_judge_of_all_missing_runs_may_cost(tmp_path: Path) -> None:
    size = "--rewards judge,hand --seeds 2 --steps 3 --tasks 2 --group-size 4 --judges openai/gpt-5-mini --dry-run"
    told = succeed("compare", "returns_desk", *size.split(), cwd=tmp_path, OPENAI_API_KEY="none")
    assert f"{2 * 3 * 2 * 2} calls, about" in told.stdout  # runs, steps, groups, orders
    assert not list(tmp_path.iterdir())


def test_cells_differ_in_reward_and_seed_alone(tmp_path: Path) -> None:
    cells = plan_cells(settings_of(DESK), desk, tmp_path, ["judge", "hand"], [], 2)
    assert [(cell.arm, cell.seed) for cell in cells] == [("judge", 0), ("hand", 0), ("judge", 1), ("hand", 1)]
    assert len({cell.directory for cell in cells}) == 4
    rest = [cell.config.model_dump() for cell in cells]
    for each in rest:
        del each["model"]["name"], each["loop"]["seed"], each["loop"]["reward"]
    assert all(each == rest[0] for each in rest)
    assert not any(cell.finished() for cell in cells)
    judged = plan_cells(settings_of(DESK), desk, tmp_path, ["judge", "hand"], ["stand-in", "constant"], 1)
    assert [cell.arm for cell in judged] == ["judge (stand-in)", "judge (constant)", "hand"]
    assert [cell.config.judge.models for cell in judged[:2]] == ["stand-in", "constant"]


def finished_cell(root: Path) -> Cell:
    (cell,) = plan_cells(settings_of(DESK), desk, root, ["judge"], [], 1)
    cell.directory.mkdir(parents=True)
    model = describe_model(trainable(cell.config.resolved(), "returns_desk"))
    (cell.directory / "model.json").write_text(json.dumps({"format_version": FORMAT_VERSION, **model}))
    rows = [{"step": cell.config.loop.steps, "split": split} for split in ("train", "held_out")]
    (cell.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return cell


OPTIONS = {"margin": 0.03, "threshold": 0.8, "parallel": 1}


async def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    trained: list[Cell] = []
    cell = finished_cell(tmp_path)
    comparison = await run_comparison([cell], desk, tmp_path, trained=trained.append, **OPTIONS)
    assert not trained
    assert [arm.name for arm in comparison.arms] == ["judge"]
    metrics = cell.directory / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    assert not cell.finished()  # its last evaluation is missing


def test_what_cannot_be_compared_is_refused_before_a_run(tmp_path: Path) -> None:
    without = Scenario(name="plain", system="", tools=[], tasks=[Task(user="hello")])
    for scenario, rewards, judges, seeds in (
        (without, ["judge"], [], 1),
        (desk, [], [], 1),
        (desk, ["judge"], [], 0),
        (desk, ["hand", "hand"], [], 1),
        (desk, ["judge"], ["constant", "constant"], 1),
    ):
        with pytest.raises(GavelError):
            plan_cells(settings_of(DESK), scenario, tmp_path, rewards, judges, seeds)


async def test_a_run_of_another_scenario_or_with_other_settings_is_refused(tmp_path: Path) -> None:
    cell = finished_cell(tmp_path)
    begun = cell.config.resolved()
    judge = begun.judge.build(desk.rubric)
    described = describe_run(Mixture([desk]), judge, begun.loop, begun.train)
    (cell.directory / "experiment.json").write_text(json.dumps({"format_version": FORMAT_VERSION, **described}))
    with pytest.raises(GavelError, match="max_turns 6, not 3"):
        await run_comparison([cell], desk.with_max_turns(3), tmp_path, **OPTIONS)
    loop = cell.config.loop.model_copy(update={"group_size": 4})
    other = replace(cell, config=cell.config.model_copy(update={"loop": loop}))
    with pytest.raises(GavelError, match="group_size 8, not 4"):
        await run_comparison([other], desk, tmp_path, **OPTIONS)
