"""What worlds share, and what worlds of packages keep to themselves."""

import random
import sqlite3
from abc import ABC
from contextlib import AbstractContextManager, nullcontext
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
    return CONSTANT["lamp"]


class Desk(ABC):  # noqa: B024
    """State of the class, of its module, of a default, and of an instance."""

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


def closure() -> Any:
    basket: list[str] = []

    def put(item: str) -> None:
        """Put something in."""
        basket.append(item)

    return put


def scenario(*tools: Any, environment: Any = None) -> Scenario:
    return Scenario("shop", tools=tools, environment=environment, tasks=[Task(user="Go.")], held_out=0)


NOTED = ["ORDERS of test_shared_state.py"]


@pytest.mark.parametrize(
    ("act", "environment", "changed"),
    [
        (cancel, None, NOTED),
        (price, None, []),
        (Desk().look, None, ["Desk that look belongs to"]),
        (closure(), None, ["basket of test_shared_state.py"]),
        (Desk().book, Desk, ["bookings of the class Desk"]),
        (Desk().note, partial(Desk), NOTED),
        (Desk().remember, Desk, ["defaults of remember"]),
        (Desk().look, partial(Desk), []),
    ],
)
def test_what_tools_and_worlds_change_outside_of_an_episode_is_named(act: Any, environment: Any, changed: list[str]):
    shop = scenario(*([] if environment else [act]), environment=environment)
    before = shared_state(shop)
    assert changed_state(before, shop) == []
    act(f"{act} {environment}")
    assert changed_state(before, shop) == changed


def test_a_variable_that_cannot_be_compared_is_named_with_the_reason():
    database = sqlite3.connect(":memory:")

    def orders() -> int:
        """Count orders."""
        return database.total_changes

    unseen = {name: reason for name, reason in shared_state(scenario(orders, price)).items() if isinstance(reason, str)}
    assert sorted(unseen) == ["_LOCK of test_shared_state.py", "database of test_shared_state.py"]
    assert "sqlite3.Connection" in unseen["database of test_shared_state.py"]
    database.close()
    assert not [reason for reason in shared_state(scenario(environment=Desk)).values() if isinstance(reason, str)]


def draws(chance: AbstractContextManager[object] = nullcontext()) -> list[float]:  # noqa: B008
    with chance:
        return [random.random(), float(np.random.random())]


def test_a_world_draws_what_it_would_draw_alone():
    alone, one, other = OwnChance(7), OwnChance(7), OwnChance(8)
    random.seed(3)
    np.random.seed(3)
    own, expected = [draws() for _ in range(4)], [draws(alone) for _ in range(4)]
    random.seed(3)
    np.random.seed(3)
    for number in range(4):  # and the process's own numbers go on as if nothing was drawn
        assert draws(one) == expected[number] != draws(other)
        assert draws() == own[number]


def test_what_is_no_option_goes_to_the_world():
    class Options(BaseModel):
        size: int = 3

    name, options, rest = parsed("games", "Chess-v0?size=5&board=8&word=b%26c&flag=true", Options)
    assert (name, options.size) == ("Chess-v0", 5)
    assert rest == {"board": 8, "word": "b&c", "flag": True}
    with pytest.raises(ScenarioError, match=r"games:Chess.*size is .many.: input should be a valid integer"):
        parsed("games", "Chess?size=many", Options)
