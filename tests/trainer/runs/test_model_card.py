"""What a checkpoint's README.md says, and that the hub's own reader understands it."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from gavel.judge.rubric import Rubric
from gavel.trainer.runs.model_card import base_license, model_card

DESCRIPTION: dict[str, Any] = {"name": "clerk", "base_model": "Qwen/Qwen3-8B", "lora": {"rank": 16}}
EXPERIMENT: dict[str, Any] = {
    "scenario": "returns_desk",
    "judge": ["openai/gpt-5-mini"],
    "rubric": Rubric("Be brief.").dump(),
    "orders": 2,
    "training": {"loss": {"kind": "cispo"}, "learning_rate": 1e-5},
}


def row(split: str, step: int, **figures: float | None) -> dict[str, Any]:
    return {"split": split, "step": step, **figures}


def card(*rows: dict[str, Any], step: int = 9, experiment: dict[str, Any] = EXPERIMENT, base: str = "a/b") -> ModelCard:
    return ModelCard(model_card(DESCRIPTION, experiment, rows, step=step, base=base))


def test_task_judge_rubric_and_base_are_on_the_card() -> None:
    found = card(base="Qwen/Qwen3-8B")
    assert found.data.base_model == "Qwen/Qwen3-8B"
    assert found.data.library_name == "peft"
    for part in (
        "clerk, step 9",
        "rank 16",
        "returns_desk",
        "openai/gpt-5-mini",
        Rubric("Be brief.").id,
        "cispo",
        "1e-05",
    ):
        assert part in found.text


def test_a_run_without_an_experiment_has_no_task_and_no_judge() -> None:
    found = card(row("train", 1, reward=0.5), experiment={})
    assert "Judge" not in found.text
    assert "| 1 | 0.500 |" in found.text


def test_the_curve_is_held_out_success_up_to_the_step_the_last_row_of_each() -> None:
    rows = [row("held_out", 0, success=0.1), row("held_out", 5, success=0.4), row("held_out", 5, success=0.5)]
    found = card(*rows, row("held_out", 10, success=0.9), row("train", 5, reward=0.7)).text
    assert found.split("|---|---|\n")[1].splitlines() == ["| 0 | 0.100 |", "| 5 | 0.500 |"]


def test_without_a_figure_there_is_no_curve() -> None:
    assert "|" not in card(row("train", 1, reward=None), row("times", 1, whole=3.0)).text


@pytest.mark.parametrize("points", [1, 2, 12, 13, 500])
def test_a_long_curve_is_thinned_and_keeps_its_ends(points: int) -> None:
    found = card(*(row("train", step, reward=step / 1000) for step in range(points)), step=points).text
    steps = [int(line.split("|")[1]) for line in found.split("|---|---|\n")[1].splitlines()]
    assert (steps[0], steps[-1], len(steps)) == (0, points - 1, min(points, 12))
    assert steps == sorted(set(steps))


@pytest.mark.parametrize(
    ("text", "license_name"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("---\ntags: [a]\n---\n", None),
        ("no head", None),
        ("---\nlicense: [mit, gpl]\n---\n", None),
        ("---\n: {\n---\n", None),
    ],
)
def test_the_licence_is_the_one_of_the_base_models_own_card(
    tmp_path: Path, text: str, license_name: str | None
) -> None:
    assert base_license(str(tmp_path)) is None
    (tmp_path / "README.md").write_text(text)
    assert base_license(str(tmp_path)) == license_name
    found = card(base=str(tmp_path))
    assert (found.data.license, found.data.base_model) == (license_name, None)
    assert (license_name or "not known here") in found.text


@pytest.mark.parametrize("base", ["not/in/the/hub", "org/model", "embedded/returns-desk"])
def test_a_base_that_is_not_here_has_no_known_licence(base: str) -> None:
    assert base_license(base) is None
