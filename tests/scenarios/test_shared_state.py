"""What worlds share, and what worlds of packages keep to themselves."""

import random
import sqlite3
from abc import ABC
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel

from gavel.scenarios.packaged_world import OwnChance, parsed
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.shared_state import changed_state, shared_state
from gavel.scenarios.task import Task

ORDERS = {"1": "open"}
CONSTANT = {"lamp": 12}
_LOCK = open(__file__)  # noqa: SIM115 - what cannot be pickled


def cancel(order: str) -> str:
    """Cancel an order."""
    _note(order)
    return "cancelled"


def _note(order: str) -> None:
    ORDERS[order] = "cancelled"


def price(item: str) -> int:
    """Look up a price."""
    assert _LOCK
    return CONSTANT[item]


class Shop:
    def __init__(self) -> None:
        self.sold = 0

    def sell(self, item: str) -> int:
        """Sell an item."""
        self.sold += 1
        return self.sold


def closure() -> Any:
    basket: list[str] = []

    def put(item: str) -> int:
        """Put something in."""
        basket.append(item)
        return len(basket)

    return put


@pytest.mark.parametrize(
    ("tool", "arguments", "changed"),
    [
        (cancel, {"order": "1"}, ["ORDERS of test_shared_state.py"]),
        (price, {"item": "lamp"}, []),
        (Shop().sell, {"item": "lamp"}, ["Shop that sell belongs to"]),
        (closure(), {"item": "lamp"}, ["basket of test_shared_state.py"]),
    ],
)
def test_what_a_tool_changes_outside_of_its_call_is_named(tool: Any, arguments: dict[str, str], changed: list[str]):
    scenario = Scenario("shop", system="", tools=[tool], tasks=[Task(user="Go.")], held_out=0)
    before = shared_state(scenario)
    assert changed_state(before, scenario) == []
    tool(**arguments)
    assert changed_state(before, scenario) == changed


def test_a_variable_that_cannot_be_compared_is_named_with_the_reason():
    database = sqlite3.connect(":memory:")

    def orders() -> int:
        """Count orders."""
        return database.total_changes

    scenario = Scenario("shop", system="", tools=[orders, price], tasks=[Task(user="Go.")], held_out=0)
    unseen = {name: reason for name, reason in shared_state(scenario).items() if isinstance(reason, str)}
    assert sorted(unseen) == ["_LOCK of test_shared_state.py", "database of test_shared_state.py"]
    assert "sqlite3.Connection" in unseen["database of test_shared_state.py"]
    database.close()


class Desk(ABC):  # noqa: B024
    """State of the class, of its module, and of a default."""

    bookings: ClassVar[dict[str, int]] = {}

    def book(self, name: str) -> int:
        """Book."""
        self.bookings[name] = len(self.bookings)
        return len(self.bookings)

    def note(self, name: str) -> None:
        """Note."""
        ORDERS[name] = "noted"

    def remember(self, name: str, seen: list[str] = []) -> None:  # noqa: B006 - what is to be found
        """Remember."""
        seen.append(name)

    def look(self, name: str) -> int:
        """Look up."""
        self.mine = name
        return CONSTANT["lamp"]


@pytest.mark.parametrize("make", [Desk, partial(Desk)])
@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("book", ["bookings of the class Desk"]),
        ("note", ["ORDERS of test_shared_state.py"]),
        ("remember", ["defaults of remember"]),
        ("look", []),
    ],
)
def test_what_worlds_of_one_class_share_is_named(make: Any, method: str, changed: list[str]):
    scenario = Scenario("desk", environment=make, tasks=[Task(user="Go.")], held_out=0)
    before = shared_state(scenario)
    getattr(make(), method)(f"{method} {make}")
    assert changed_state(before, scenario) == changed
    assert not [name for name, reason in before.items() if "Desk" in name and isinstance(reason, str)]


def draws(chance: OwnChance) -> list[float]:
    with chance:
        return [random.random(), float(np.random.random())]


def test_a_world_draws_what_it_would_draw_alone():
    alone = OwnChance(7)
    expected = [draws(alone) for _ in range(4)]
    random.seed(3)
    np.random.seed(3)
    own = [[random.random(), float(np.random.random())] for _ in range(4)]
    random.seed(3)
    np.random.seed(3)
    one, other = OwnChance(7), OwnChance(8)
    found: list[list[float]] = []
    for number in range(4):  # and the process's own numbers go on as if nothing was drawn
        found.append(draws(one))
        draws(other)
        assert [random.random(), float(np.random.random())] == own[number]
    assert found == expected
    assert draws(other) not in expected


class Options(BaseModel):
    size: int = 3


def test_what_is_no_option_goes_to_the_world():
    name, options, rest = parsed("games", "Chess-v0?size=5&board=8&word=b%26c&flag=true", Options)
    assert (name, options.size) == ("Chess-v0", 5)
    assert rest == {"board": 8, "word": "b&c", "flag": True}
    with pytest.raises(ScenarioError, match=r"games:Chess.*size is .many.: input should be a valid integer"):
        parsed("games", "Chess?size=many", Options)
