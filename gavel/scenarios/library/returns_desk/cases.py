"""The cases of the returns desk: an order, the policy of its item, and the action that follows from both.

The policy is random for every case, so it cannot be memorized: an agent that does not look it up can only
guess. An order number always belongs to the same split.
"""

import random
from functools import cache
from typing import Literal, get_args

from pydantic import BaseModel

from gavel.scenarios.task import Task

Action = Literal["refund", "exchange", "deny"]
ACTIONS: tuple[Action, ...] = get_args(Action)

ITEMS = (
    "lamp", "kettle", "toaster", "chair", "desk", "blanket", "jacket", "boots", "scarf", "tent", "radio", "camera",
    "phone", "tablet", "keyboard", "monitor", "printer", "guitar", "drum", "bicycle", "helmet", "novel", "puzzle",
)  # fmt: skip
WINDOWS = (7, 14, 21, 30, 45, 60)
REQUESTS = (
    "I want a refund for order {id}.",
    "Please refund order {id}.",
    "My order {id} is not what I wanted. I want my money back.",
    "Hello, I would like to return order {id} for a refund.",
    "Order {id} has to go back. Can I get a refund?",
)
OUTCOME_SHARES: dict[Action, float] = {"refund": 0.37, "exchange": 0.28, "deny": 0.35}
"""So that granting every request, the habit of the base policy, succeeds in little more than a third of the cases."""


class Case(BaseModel):
    """The hidden state of one task."""

    order_id: str
    item: str
    days: int
    """Since the purchase."""
    opened: bool
    window: int
    """Days within which the item can be returned."""
    opened_ok: bool
    """Whether it is refunded although it was opened."""

    @property
    def right_action(self) -> Action:
        if self.days > self.window:
            return "deny"
        return "refund" if self.opened_ok or not self.opened else "exchange"


def draw_case(order_id: int) -> Case:
    """The case of an order number, always the same one."""
    dice = random.Random(f"returns-desk/{order_id}")
    outcome = dice.choices(list(OUTCOME_SHARES), weights=list(OUTCOME_SHARES.values()))[0]
    while True:
        case = Case(
            order_id=str(order_id),
            item=dice.choice(ITEMS),
            days=dice.randint(1, 75),
            opened=dice.random() < 0.5,
            window=dice.choice(WINDOWS),
            opened_ok=dice.random() < 0.5,
        )
        if case.right_action == outcome:
            return case


def is_held_out(order_id: int) -> bool:
    """One order number in five, drawn so that both splits have numbers of every shape."""
    return random.Random(f"split/{order_id}").random() < 0.2


def split_numbers(held_out: bool) -> list[int]:
    """The order numbers of a split."""
    return [number for number in range(1000, 10000) if is_held_out(number) == held_out]


@cache
def draw_task(order_id: int) -> Task:
    """The task of an order number, always the same one; `data` is its case."""
    request = random.Random(f"request/{order_id}").choice(REQUESTS)
    return Task(id=str(order_id), user=request.format(id=order_id), data=draw_case(order_id).model_dump())
