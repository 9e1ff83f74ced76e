"""What is planned of a comparison, before anything runs."""

from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.cli.compare_session import plan_cells, read_rewards, settings_of
from gavel.cli.demo import LIKELIHOOD, ONE_SENTENCE
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.task import Task

DESK = "returns_desk"


def test_a_sum_of_rewards_has_equal_weights() -> None:
    assert read_rewards("judge+hand") == {"judge": 1.0, "hand": 1.0}
    for wrong in ("taste", "judge+judge", ""):
        with pytest.raises(GavelError):
            read_rewards(wrong)


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


def test_the_jobs_of_the_demo_are_compared_by_its_settings() -> None:
    words = settings_of("one_sentence").resolved()
    assert (words.model.base_model, words.judge.models) == (ONE_SENTENCE.base_model, LIKELIHOOD)
    assert (words.loop.max_tokens, words.loop.final_tasks, words.model.lora.rank) == (40, 64, 8)
    assert words.train.learning_rate == 5e-4
    desk = settings_of(DESK)
    assert (desk.judge.models, desk.loop.final_tasks, desk.train.learning_rate) == (None, 512, 4e-3)
    assert settings_of("tic_tac_toe").model.model_fields_set == set()


def test_each_judge_is_an_arm_of_the_rewards_that_have_one(tmp_path: Path) -> None:
    cells = plan_cells(settings_of(DESK), find_scenario(DESK), tmp_path, ["judge", "hand"], ["stand-in", "constant"], 1)
    assert [cell.arm for cell in cells] == ["judge (stand-in)", "judge (constant)", "hand"]
    assert [cell.config.judge.models for cell in cells[:2]] == ["stand-in", "constant"]


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
