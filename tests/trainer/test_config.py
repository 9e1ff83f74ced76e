"""Settings are numbers that can be computed with; docs/algorithms.md has them and every recipe; a model is its spec."""

import re
from pathlib import Path
from typing import get_args

import pytest

import gavel
from gavel.trainer.config import RECIPES, AdvantageKind, Loss, RecipeError, TrainConfig, recipe_settings, recipe_tables


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(RecipeError, match="no recipe 'ppo2'") as error:
        recipe_settings("ppo2")
    assert all(name in error.value.remedy for name in RECIPES)


PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
CLASSES = (*(each.__name__ for each in get_args(get_args(Loss)[0])), "SamplerCorrection")
SETTINGS = [
    setting for line in PAGE.splitlines() if line.startswith("| ") for setting in re.findall(r"`(\w+=[^`]*)`", line)
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_of_the_page_makes_a_configuration(setting):
    config = eval(f"TrainConfig({setting})", {name: getattr(gavel, name) for name in ("TrainConfig", *CLASSES)})
    assert isinstance(config, TrainConfig)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_the_page_has_every_kind_of_loss_advantage_and_correction():
    for kind in (*get_args(AdvantageKind), "k1", "k2", "k3"):
        assert any(f'"{kind}"' in setting for setting in SETTINGS), kind
    for name in (*CLASSES, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"):
        assert any(name in setting for setting in SETTINGS), name


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_on_the_page_with_its_settings(name):
    (line,) = re.findall(rf"^\| `{name}` \| `(.*)` \|$", PAGE, flags=re.MULTILINE)
    written = eval(f"TrainConfig({line})", {each: getattr(gavel, each) for each in ("TrainConfig", *CLASSES)})
    assert gavel.recipe(name) == written
    config = gavel.recipe(name, learning_rate=3e-6, loss={"kind": "reinforce"}, beta=0.5)
    assert (config.learning_rate, config.loss, config.beta) == (3e-6, gavel.Reinforce(), 0.5), "what is beside it wins"
    tables = recipe_tables(name)
    assert {key: value for (table, key), value in tables.items() if table == "train"} == RECIPES[name]
    assert tables.get(("loop", "refill")) == (2.0 if name in ("dapo", "top_entropy") else None)
