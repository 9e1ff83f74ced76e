"""`gavel compare` and `gavel.compare`: cells, progress, blind ranking; killed and gone on with; what is stored."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gavel
from gavel.base.errors import GavelError
from gavel.cli import compare_session
from gavel.cli.compare_session import (
    BEFORE,
    Cell,
    attempts_by_seed,
    cell_of,
    compare,
    judge_that_ranks,
    plan_cells,
    rank_runs,
    run_cells,
    run_comparison,
    settings_of,
    show_steps,
)
from gavel.cli.terminal import WaitDisplay
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.llm.types import Message
from gavel.reports.comparison import Comparison, compare_cells, read_cell
from gavel.scenarios.library import returns_desk
from gavel.scenarios.library.returns_desk import scenario as desk
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.task import Task
from gavel.trainer.loop.experiment import describe_experiment
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_listing import is_running
from tests.forked import gavel as run_gavel
from tests.gavel.reports.made_runs import damage_row, made_run
from tests.limits import HANG_SECONDS

SETTINGS = "--seeds 1 --steps 2 --evaluate-every 1 --tasks 2 --group-size 2 --evaluation-tasks 4 --final-tasks 4"
SMALL = ["returns_desk", "--rewards", "hand,constant", *SETTINGS.split()]


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
        _wait(lambda: (hand / "metrics.jsonl").exists())
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(HANG_SECONDS)
    _wait(lambda: not is_running(hand))  # the run ends with the process that started it
    done = run_gavel("compare", *SMALL, cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    assert "hand - constant" in done.stdout
    written = (hand / "metrics.jsonl").read_text()
    again = run_gavel("compare", *SMALL, cwd=tmp_path, GAVEL_RUNS="runs")
    assert "2 finished before" in again.stdout
    assert (hand / "metrics.jsonl").read_text() == written
    figures = json.loads((place / "comparison.json").read_text())
    assert [list(arm["runs"][0]["heldout_success"]) for arm in figures["arms"]] == [["0", "1", "2"]] * 2
    assert (hand / "report.html").is_file()


def test_existing_runs_are_compared_without_a_claim(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / "runs" / "desk" / name)
    done = run_gavel("compare", "desk/one", str(tmp_path / "runs" / "desk" / "two"), cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    assert "desk/one - desk/two: +0.00 (1 seed): not shown: one seed has no interval" in done.stdout
    assert (tmp_path / "runs" / "compare" / "runs" / "desk-one-desk-two" / "report.html").is_file()


def test_damaged_files_of_runs_are_told_once_beside_the_figures(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / "runs" / "desk" / name)
    damage_row(tmp_path / "runs" / "desk" / "two")
    (tmp_path / "runs" / "desk" / "one" / "model.json").write_text("[]")
    done = run_gavel("compare", "desk/one", "desk/two", cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    page = tmp_path / "runs" / "compare" / "runs" / "desk-one-desk-two" / "report.html"
    for told in ("desk/two/metrics.jsonl cannot be read (line 2)", "desk/one/model.json is not a JSON object"):
        assert (done.stdout + done.stderr).count(told) == page.read_text().count(told) == 1


def test_existing_runs_are_ranked_by_a_judge_that_is_not_told_whose_attempts_they_are(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "desk" / "one", says="Your refund is on its way, and thank you for waiting.")
    made_run(tmp_path / "runs" / "desk" / "two", says="No.")
    (tmp_path / "r.txt").write_text("- ends with a message to the customer\n")
    arguments = ["desk/one", "desk/two", "--blind-judge", "stand-in", "--blind-rubric", "@r.txt", "--orders", "1"]
    done = run_gavel("compare", *arguments, cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 0, done.stderr
    assert "Ranked blind by gavel/stand-in in 3 groups of held-out attempts; a tie is half a win." in done.stdout
    place = tmp_path / "runs" / "compare" / "runs" / "desk-one-desk-two"
    figures = json.loads((place / "comparison.json").read_text())["blind"]
    assert figures["rubric"] == "- ends with a message to the customer"
    assert [(pair["reward"], pair["against"]) for pair in figures["pairs"]] == [("desk/one", "desk/two")]
    assert "ranked blind" in (place / "report.html").read_text()
    again = run_gavel("compare", *arguments, cwd=tmp_path, GAVEL_RUNS="runs")
    assert "blind ranking:" in done.stdout
    assert "blind ranking:" not in again.stdout  # it asked nothing


def test_runs_of_different_scenarios_are_not_compared_and_other_differences_are_told(tmp_path: Path) -> None:
    for name, scenario, steps in (("one", "returns_desk", 3), ("two", "booking_desk", 3), ("three", "returns_desk", 5)):
        made_run(tmp_path / "runs" / "desk" / name, scenario=scenario, steps=steps)
    done = run_gavel("compare", "desk/one", "desk/two", cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 1
    assert "different scenarios (desk/one: returns_desk, desk/two: booking_desk)" in " ".join(done.stderr.split())
    third = tmp_path / "runs" / "desk" / "three" / "experiment.json"
    third.write_text(third.read_text().replace('"seed": 0', '"seed": 7'))
    told = run_gavel("compare", "desk/one", "desk/three", cwd=tmp_path, GAVEL_RUNS="runs")
    assert told.returncode == 0, told.stderr
    assert "The runs had different seeds (0, 7)" in told.stdout
    assert "The runs were last evaluated at different steps (desk/one: step 3, desk/three: step 5)" in told.stdout


def test_a_dry_run_tells_what_the_judge_of_all_missing_runs_may_cost(tmp_path: Path) -> None:
    size = "--rewards judge,hand --seeds 2 --steps 3 --tasks 2 --group-size 4 --judges openai/gpt-5-mini --dry-run"
    told = run_gavel("compare", "returns_desk", *size.split(), cwd=tmp_path, OPENAI_API_KEY="none")
    assert told.returncode == 0, told.stderr
    assert f"{2 * 3 * 2 * 2} calls, about" in told.stdout  # runs, steps, groups, orders
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("desk/one desk/two --dry-run", "--dry-run: no effect here"),
        ("returns_desk --rewards taste", "there is no reward 'taste'"),
        ("no/run other/run", "no/run is no run"),
        ("desk/one", "what it is to be compared with is not said"),
        ("desk/one runs/desk/one", "a run is compared with itself"),
        ("desk/one desk/two --seeds 3 --judges constant", "--judges, --seeds: no effect here"),
        ("returns_desk --blind-rubric short", "--blind-rubric is for a judge that ranks"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: str, said: str) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / "runs" / "desk" / name)
    done = run_gavel("compare", *arguments.split(), cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


DESK = "returns_desk"


def test_cells_differ_in_reward_and_seed_alone(tmp_path: Path) -> None:
    cells = plan_cells(settings_of(DESK), find_scenario(DESK), tmp_path, ["judge", "hand"], [], 2)
    assert [(cell.arm, cell.seed) for cell in cells] == [("judge", 0), ("hand", 0), ("judge", 1), ("hand", 1)]
    assert len({cell.directory for cell in cells}) == 4
    rest = [
        cell.config.model_copy(
            update={
                "model": cell.config.model.model_copy(update={"name": None}),
                "loop": cell.config.loop.model_copy(update={"seed": 0, "reward": {}}),
            }
        )
        for cell in cells
    ]
    assert all(each == rest[0] for each in rest)
    assert not any(cell.finished() for cell in cells)
    judged = plan_cells(
        settings_of(DESK), find_scenario(DESK), tmp_path, ["judge", "hand"], ["stand-in", "constant"], 1
    )
    assert [cell.arm for cell in judged] == ["judge (stand-in)", "judge (constant)", "hand"]
    assert [cell.config.judge.models for cell in judged[:2]] == ["stand-in", "constant"]


def finished_cell(root: Path) -> Cell:
    cell = cell_of(settings_of("returns_desk"), "returns_desk", root, "judge", 0)
    cell.directory.mkdir(parents=True)
    (cell.directory / "model.json").write_text("{}")
    rows = [{"step": cell.config.loop.steps, "split": split} for split in ("train", "held_out")]
    (cell.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cell.file.parent.mkdir()
    cell.file.write_text(cell.toml())
    return cell


async def test_a_finished_run_is_not_run_again_nor_with_other_settings(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    cell = finished_cell(tmp_path)
    await run_cells([cell], tmp_path, parallel=1, done=lambda cell, ran: seen.append((cell.label, ran)))
    assert seen == [("judge, seed 0", False)]
    cell.file.write_text(cell.toml().replace("group_size = 8", "group_size = 4") + "# other\n")
    with pytest.raises(GavelError, match="had other settings"):
        await run_cells([cell], tmp_path, parallel=1)
    metrics = cell.directory / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    assert not cell.finished()  # its last evaluation is missing


def own() -> gavel.Scenario:
    return gavel.Scenario(
        "own_desk",
        system=desk.system,
        tools=[tool.function for tool in desk.toolbox],
        tasks=desk.tasks("train")[:8],
        held_out=desk.tasks("held_out")[:4],
        max_turns=3,
        rubric=desk.rubric,
        success=lambda trajectory: len(trajectory.messages()) > 4,
    )


@pytest.mark.slow
async def test_a_scenario_of_the_program_is_compared_in_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = {"steps": 1, "tasks_per_step": 2, "group_size": 2, "final_tasks": 2, "max_tokens": 32}
    settings = RunConfig.model_validate({"scenario": "own_desk", "loop": loop})
    first = await compare(own(), rewards=["judge", "constant"], seeds=1, settings=settings)
    assert [arm.name for arm in first.arms] == ["judge", "constant"]
    assert all(arm.final.value is not None for arm in first.arms)
    page = tmp_path / "runs" / "compare" / "own_desk" / "report.html"
    runs = {file: file.stat().st_mtime_ns for file in page.parent.glob("*/metrics.jsonl")}
    assert len(runs) == 2
    await compare(own(), rewards=["judge", "constant"], seeds=1, settings=settings)
    assert {file: file.stat().st_mtime_ns for file in runs} == runs


class Better:
    """Scores replies that are `a better reply`; remembers what it was shown."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def __call__(self, messages: list[Message], schema: dict[str, object]) -> str:
        self.prompts.append("\n".join(message["content"] for message in messages))
        scores: list[dict[str, object]] = []
        for label, attempt in read_transcripts(messages[-1]["content"]).items():
            better = "a better reply" in str(attempt)
            scores.append({"trajectory_id": label, "explanation": f"better: {better}", "score": float(better)})
        return json.dumps({"scores": scores})


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    cells = [
        read_cell(arm, seed, made_run(tmp_path / f"{arm}-{seed}", says=f"{says} {seed}"), None)
        for arm, says in {"hand": "no", "judge": "a better reply"}.items()
        for seed in (0, 1)
    ]
    return compare_cells(cells, "desk", tmp_path / "report", margin=0.03, threshold=0.8)


async def test_the_judge_is_not_told_whose_attempts_they_are_and_is_not_asked_twice(comparison: Comparison) -> None:
    asked = Better()
    ranked = await rank_runs(comparison, Judge(asked, rubric="The better.", mode="pairwise"), WaitDisplay())
    assert ranked.blind is not None
    assert ranked.blind.contenders == [BEFORE, "hand", "judge"]
    assert ranked.blind.overall["judge"].over_seeds.value == 1.0
    assert ranked.blind.pairs[BEFORE, "hand"].over_seeds.value == 0.5
    assert ranked.blind.tasks == 6
    assert asked.prompts
    assert not any(BEFORE in prompt or "hand" in prompt for prompt in asked.prompts)
    calls = len(asked.prompts)
    again = await rank_runs(comparison, Judge(asked, rubric="The better.", mode="pairwise"), WaitDisplay())
    assert len(asked.prompts) == calls
    assert again.blind is not None
    assert again.blind.as_json()["pairs"] == ranked.blind.as_json()["pairs"]


def test_what_cannot_be_compared_is_refused_before_a_run(tmp_path: Path) -> None:
    desk = find_scenario(DESK)
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


async def test_a_finished_run_of_another_scenario_is_refused(tmp_path: Path) -> None:
    begun = returns_desk.scenario
    cell = finished_cell(tmp_path)
    (cell.directory / "experiment.json").write_text(json.dumps(describe_experiment(Mixture([begun]), None)))
    other, options = begun.with_max_turns(3), {"margin": 0.03, "threshold": 0.8, "parallel": 1}
    with pytest.raises(GavelError, match="max_turns 6, not 3"):
        await run_comparison([cell], other, tmp_path, **options)


def test_attempts_of_a_seed_are_those_of_its_runs_and_of_the_common_start(comparison: Comparison) -> None:
    cells = [cell for arm in comparison.arms for cell in arm.cells]
    found = attempts_by_seed(cells, same_start=True)
    assert [(seed, *attempts) for seed, attempts in found.items()] == [
        (0, BEFORE, "hand", "judge"),
        (1, BEFORE, "hand", "judge"),
    ]
    assert sorted(found[1]["judge"]) == [("task-0", 1), ("task-1", 1), ("task-2", 1)]
    assert list(attempts_by_seed(cells, same_start=False)[0]) == ["hand", "judge"]
    assert attempts_by_seed(cells[:1], same_start=False) == {}


def test_it_ranks_pairs_whatever_the_mode_and_rubric_of_the_judge_that_trains(tmp_path: Path) -> None:
    trains = JudgeConfig(models="constant", rubric="Please me.", mode="groupwise", orders=3)
    judge = judge_that_ranks(trains, "stand-in", "- ends with a message to the customer", tmp_path)
    assert (judge.mode, judge.orders, judge.rubric.words) == ("pairwise", 3, "- ends with a message to the customer")
    assert judge_that_ranks(trains, "stand-in", None, tmp_path, "groupwise").mode == "groupwise"


STEPS = settings_of("returns_desk").loop.steps


class Heard(WaitDisplay):
    """Takes note of the total and of what the status was at each part."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.parts: list[str] = []
        self.two = asyncio.Event()

    @contextmanager
    def waiting(
        self,
        what: str,
        total: int,
        unit: str,
        status: Callable[[], str] = lambda: "",
    ) -> Generator[Callable[[], None]]:
        self.total = total
        yield lambda: self._note(status())

    def _note(self, part: str) -> None:
        self.parts.append(part)
        if len(self.parts) == 2:
            self.two.set()


def cell(root: Path, seed: int, steps: int, *, evaluated: bool = False) -> Cell:
    made = cell_of(settings_of("returns_desk"), "returns_desk", root, "judge", seed)
    train(made, range(1, steps + 1))
    if evaluated:
        append(made, [{"step": STEPS, "split": "held_out"}])
    return made


def train(cell: Cell, steps: range) -> None:
    append(cell, [{"step": step, "split": split} for step in steps for split in ("train", "times")])


def append(cell: Cell, rows: list[dict[str, object]]) -> None:
    cell.directory.mkdir(parents=True, exist_ok=True)
    (cell.directory / "model.json").write_text("{}")
    with (cell.directory / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


async def test_each_step_is_told_once_and_those_from_before_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_session, "_SECONDS", 0.01)
    finished, begun = cell(tmp_path, 0, STEPS, evaluated=True), cell(tmp_path, 1, 3)
    new = cell_of(settings_of("returns_desk"), "returns_desk", tmp_path, "judge", 2)
    heard = Heard()
    with show_steps([finished, begun, new], heard):
        train(begun, range(4, 6))
        await heard.two.wait()
        train(begun, range(6, STEPS + 1))
        train(new, range(1, STEPS + 1))
    assert heard.total == len(heard.parts) == 2 * STEPS - 3
    assert heard.parts[0] == f"judge, seed 1: step 5 of {STEPS}"
    assert heard.parts[-1] == f"judge, seed 2: step {STEPS} of {STEPS}"
