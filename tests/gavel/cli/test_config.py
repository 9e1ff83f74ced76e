"""`gavel config`, and that every option is declared once."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.cli.config import app
from gavel.cli.options import run_config
from gavel.judge.config import JudgeConfig


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--loss", "ppo", "--seed", "3", "--steps", "7", "--name", "mine"],
        ["--engine", "http://gpu-1:8000", "--judge-param", "temperature=0.5", "--rubric", 'Two\nlines, "quoted".'],
        ["--model", "Qwen/Qwen3-0.6B", "--quantization", "4bit", "--lora-rank", "8", "--max-cost", "0.5"],
        ["--set", "train.sampler_correction.cap=3", "--set", 'judge.prices={"openai/x" = [1, 2]}', "--shard-base"],
        ["--set", 'judge.models=[{model = "stand-in", weight = 2}, "constant"]'],
    ],
)
def test_what_is_printed_reads_back_as_the_same_configuration(tmp_path: Path, options: list[str]) -> None:
    text = printed("returns_desk", *options)
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert printed(str(path)) == text
    again = run_config(str(path), {}).resolved().model_dump(mode="json")
    for table in ("model", "judge", "loop", "train", "backend"):
        for name, value in tomllib.loads(text)[table].items():
            assert again[table][name] == value or isinstance(value, dict | list)


def test_each_field_is_printed_with_its_description_and_what_follows_from_others_as_a_comment() -> None:
    text = printed("returns_desk", "--steps", "9")
    assert re.search(r"# Orders in which the judge sees a group.*\n(#.*\n)*orders = 2\n", text)
    assert "# total_steps = 9  (follows from other settings)" in text
    assert "# learning_rate = 0.002  (follows from other settings)" in text
    assert 'kind = "grpo"' in text


def test_a_seed_given_over_a_printed_file_is_the_judges_seed_too(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(printed("returns_desk"))
    assert run_config(str(tmp_path / "run.toml"), {"seed": 5}).resolved().judge.seed == 5


def test_a_judge_is_built_with_its_budget_and_parameters() -> None:
    config = JudgeConfig(models="stand-in", max_cost_usd=0.5, params={"temperature": 0.1}, orders=3, quorum=0.5)
    judge = config.build("Be brief.")
    assert (judge.budget.max_cost_usd, judge.orders, judge.config.quorum) == (0.5, 3, 0.5)
    assert judge.jurors[0].params == {"temperature": 0.1}
    assert judge.rubric.text == "Be brief."
    assert JudgeConfig(models="stand-in", rubric="Be kind.").build("Be brief.").rubric.text == "Be kind."
