"""docs/algorithms.md: its settings are accepted, its program runs."""

import re
from pathlib import Path

import pytest

import gavel
from gavel.trainer.config import RECIPES, TrainConfig

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
CLASSES = ("Cispo", "ClippedSurrogate", "Gspo", "Ppo", "Reinforce", "SamplerCorrection")
SETTINGS = [
    setting for line in PAGE.splitlines() if line.startswith("| ") for setting in re.findall(r"`(\w+=[^`]*)`", line)
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_of_the_page_makes_a_configuration(setting):
    config = eval(f"TrainConfig({setting})", {name: getattr(gavel, name) for name in ("TrainConfig", *CLASSES)})
    assert isinstance(config, TrainConfig)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_the_page_has_every_kind_of_loss_advantage_and_correction():
    for kind in ("mean", "std", "rloo", "rank", "shrunk", "k1", "k2", "k3"):
        assert any(f'"{kind}"' in setting for setting in SETTINGS), kind
    for name in (*CLASSES, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"):
        assert any(name in setting for setting in SETTINGS), name


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_on_the_page_with_its_settings(name):
    (line,) = re.findall(rf"^\| `{name}` \| `(.*)` \|$", PAGE, flags=re.MULTILINE)
    written = eval(f"TrainConfig({line})", {each: getattr(gavel, each) for each in ("TrainConfig", *CLASSES)})
    assert gavel.recipe(name) == written


@pytest.mark.slow
def test_the_pages_program_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path))
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(program, "docs/algorithms.md", "exec"), {"__name__": "__main__"})
    assert re.fullmatch(r"loss -?\d+\.\d{3} over \d+ tokens\n", capsys.readouterr().out)
