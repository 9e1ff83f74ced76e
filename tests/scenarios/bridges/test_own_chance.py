"""Worlds that draw from the process's generators do not disturb one another."""

import random

import numpy as np

from gavel.scenarios.packaged_world import OwnChance


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


def test_a_world_that_reseeds_keeps_it_to_itself():
    state = random.getstate()
    chance = OwnChance(1)
    with chance:
        random.seed(5)
    assert random.getstate() == state
    with chance:
        assert random.random() == random.Random(5).random()
