"""Recipes by name; docs/algorithms.md has their settings (test_algorithms_page.py)."""

import pytest

import gavel
from gavel.trainer.config import RECIPES, RecipeError, recipe_settings, recipe_tables


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_set_beside_a_recipe_wins_over_it(name):
    config = gavel.recipe(name, learning_rate=3e-6, loss={"kind": "reinforce"}, beta=0.5)
    assert (config.learning_rate, config.loss, config.beta) == (3e-6, gavel.Reinforce(), 0.5)


def test_the_tables_of_a_recipe_are_those_of_a_run_and_dapos_refill():
    for name in RECIPES:
        train = {key: value for (table, key), value in recipe_tables(name).items() if table == "train"}
        assert train == RECIPES[name]
    assert recipe_tables("dapo")["loop", "refill"] == recipe_tables("top_entropy")["loop", "refill"] == 2.0


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(RecipeError, match="no recipe 'ppo2'") as error:
        recipe_settings("ppo2")
    assert all(name in error.value.remedy for name in RECIPES)
