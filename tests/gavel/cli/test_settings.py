import os
from pathlib import Path

import pytest

from gavel.cli.settings import Settings, SettingsError, load_dotenv
from gavel.llm.prices import prices_from_environment


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_a_dotenv_file_is_read_and_the_environment_wins(tmp_path: Path):
    (tmp_path / ".env").write_text(
        "GAVEL_JUDGE_MODEL=openai/gpt-5-mini\nGAVEL_RUNS=from_file\n"
        'GAVEL_PRICES={"openai/gpt-5-mini": [0.25, 2.0]}  # USD\n'
    )
    os.environ["GAVEL_RUNS"] = "from_environment"
    load_dotenv()
    settings = Settings.read()
    assert settings.judge == "openai/gpt-5-mini"
    assert settings.runs == Path("from_environment")
    assert prices_from_environment() == {"openai/gpt-5-mini": (0.25, 2.0)}


def test_without_settings_the_stand_in_judges_and_nothing_leaves_the_machine():
    load_dotenv()
    settings = Settings.read()
    assert (settings.judge, settings.judge_model, settings.runs) == ("stand-in", None, Path("runs"))
    assert settings.wandb == "off"


def test_a_key_without_a_value_is_not_set(tmp_path: Path):
    (tmp_path / ".env").write_text("OPENAI_API_KEY=\n")
    load_dotenv()
    assert "OPENAI_API_KEY" not in os.environ


def test_every_line_of_the_example_can_be_read(tmp_path: Path):
    example = Path(__file__).parents[3] / ".env.example"
    lines = [line.removeprefix("# ") for line in example.read_text().splitlines() if "=" in line]
    (tmp_path / ".env").write_text("\n".join(lines))
    load_dotenv()
    settings = Settings.read()
    assert settings.judge_model == "ollama/qwen3"
    assert prices_from_environment() == {"openai/gpt-5-mini": (0.25, 2.0)}
    assert settings.wandb == "offline"


@pytest.mark.parametrize(
    ("mode", "key", "expected"),
    [("", "k", "online"), ("offline", "", "offline"), ("disabled", "k", "off"), ("", "", "off")],
)
def test_metrics_go_to_wandb_only_when_asked(mode: str, key: str, expected: str):
    os.environ |= {"WANDB_MODE": mode, "WANDB_API_KEY": key}
    assert Settings.read().wandb == expected


def test_a_dotenv_file_that_is_no_text_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"\.env cannot be read"):
        load_dotenv()
