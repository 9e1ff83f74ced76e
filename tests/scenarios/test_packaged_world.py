"""Worlds in packages: chance of their own, addresses, and packages that lack."""

import random

import numpy as np
import pytest
from pydantic import BaseModel

from gavel.scenarios.packaged_world import OwnChance, parsed
from gavel.scenarios.scenario import ScenarioError, find_scenario


def draws(chance: OwnChance) -> list[float]:
    with chance:
        return [random.random(), float(np.random.random())]


def test_a_world_draws_what_it_would_draw_alone():
    alone = OwnChance(7)
    expected = [draws(alone) for _ in range(4)]
    one, other = OwnChance(7), OwnChance(8)
    found: list[list[float]] = []
    for _ in range(4):
        found.append(draws(one))
        draws(other)
        random.random()
        np.random.random()
    assert found == expected
    assert draws(other) not in expected


def test_the_process_s_own_numbers_go_on_as_if_nothing_was_drawn():
    random.seed(3)
    np.random.seed(3)
    expected = [random.random(), random.random(), float(np.random.random())]
    random.seed(3)
    np.random.seed(3)
    first = random.random()
    draws(OwnChance(1))
    assert [first, random.random(), float(np.random.random())] == expected


class Options(BaseModel):
    size: int = 3


def test_what_is_no_option_goes_to_the_world():
    name, options, rest = parsed("games", "Chess-v0?size=5&board=8&word=b%26c&flag=true", Options)
    assert (name, options.size) == ("Chess-v0", 5)
    assert rest == {"board": 8, "word": "b&c", "flag": True}


def test_an_option_of_another_form_is_named():
    with pytest.raises(ScenarioError, match=r"games:Chess.*size is .many.: input should be a valid integer"):
        parsed("games", "Chess?size=many", Options)


@pytest.mark.parametrize(
    ("address", "distribution"),
    [
        ("reasoning_gym:leg_counting", "reasoning-gym"),
        ("textarena:TicTacToe-v0", "textarena"),
        ("gymnasium:Taxi-v4", "gymnasium"),
    ],
)
def test_each_adapter_names_its_package(address: str, distribution: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, address.partition(":")[0], None)
    with pytest.raises(ScenarioError) as caught:
        find_scenario(address)
    assert caught.value.remedy == f"pip install {distribution}"
