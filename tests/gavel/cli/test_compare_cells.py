"""When a run of a comparison counts as finished, and that finished runs of other settings are refused."""

import json
from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.cli.compare_session import Cell, cell_of, run_cells, run_comparison, settings_of, slug
from gavel.cli.demo import RETURNS_DESK
from gavel.cli.options import run_config
from gavel.scenarios.library import returns_desk
from gavel.scenarios.mixture import Mixture
from gavel.trainer.loop.experiment import described_experiment
from gavel.trainer.run_config import RunConfig


def finished_cell(root: Path) -> Cell:
    cell = cell_of(settings_of("returns_desk"), "returns_desk", root, "judge", 0)
    cell.directory.mkdir(parents=True)
    (cell.directory / "model.json").write_text("{}")
    rows = [{"step": cell.config.loop.steps, "split": split} for split in ("train", "held_out")]
    (cell.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cell.file.parent.mkdir()
    cell.file.write_text(cell.toml())
    return cell


async def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    cell = finished_cell(tmp_path)
    await run_cells([cell], tmp_path, parallel=1, done=lambda cell, ran: seen.append((cell.label, ran)))
    assert seen == [("judge, seed 0", False)]


async def test_a_finished_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    cell = finished_cell(tmp_path)
    cell.file.write_text(cell.toml().replace("group_size = 8", "group_size = 4") + "# other\n")
    with pytest.raises(GavelError, match="had other settings"):
        await run_cells([cell], tmp_path, parallel=1)


async def test_a_finished_run_of_another_scenario_is_refused(tmp_path: Path) -> None:
    begun = returns_desk.scenario
    cell = finished_cell(tmp_path)
    (cell.directory / "experiment.json").write_text(json.dumps(described_experiment(Mixture([begun]), None)))
    other, options = begun.with_max_turns(3), {"margin": 0.03, "threshold": 0.8, "parallel": 1}
    with pytest.raises(GavelError, match="max_turns 6, not 3"):
        await run_comparison([cell], other, tmp_path, **options)


def test_a_run_without_its_last_evaluation_is_not_finished(tmp_path: Path) -> None:
    cell = finished_cell(tmp_path)
    metrics = cell.directory / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    assert not cell.finished()


def test_a_run_has_the_settings_that_follow_from_the_model_and_the_number_of_steps(tmp_path: Path) -> None:
    settings = run_config(str(write(cell_of(settings_of("returns_desk"), "returns_desk", tmp_path, "judge", 3))), {})
    own = {"model": settings.model, "loop": settings.loop, "judge": settings.judge}
    alone = RunConfig(scenario="returns_desk", train=RETURNS_DESK.train, **own)
    assert settings.resolved() == alone.resolved()
    assert settings.train.learning_rate == 4e-3


def write(cell: Cell) -> Path:
    cell.file.parent.mkdir(parents=True)
    cell.file.write_text(cell.toml())
    return cell.file


def test_names_of_arms_are_names_of_directories() -> None:
    assert slug("judge (openai/gpt-5-mini)") == "judge-openai-gpt-5-mini"
    assert slug("judge+hand") == "judge+hand"
