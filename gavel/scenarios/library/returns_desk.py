"""The returns desk: look up an order, read the policy of its item, then refund, exchange or deny.

Every customer asks for a refund; the right action depends on facts that only the tools reveal. The policy is random for
every case, so an agent that does not look it up can only guess.

The embedded policy is cloned from `demonstrate`, mostly from bad habits. Four clerks alternate: the careful one follows
the rules, the hasty one refunds without looking, the guesser acts at random without looking, and the sloppy one looks
up at least the order, but acts at random and sometimes forgets to inform the customer.
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import Literal, get_args

from pydantic import BaseModel

from gavel.scenarios.library._shared import has_closed, playing, shipped
from gavel.scenarios.scripted_agent import Call, Player
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory

Action = Literal["refund", "exchange", "deny"]
ACTIONS: tuple[Action, ...] = get_args(Action)
ITEMS = (
    "lamp", "kettle", "toaster", "chair", "desk", "blanket", "jacket", "boots", "scarf", "tent", "radio", "camera",
    "phone", "tablet", "keyboard", "monitor", "printer", "guitar", "drum", "bicycle", "helmet", "novel", "puzzle",
)  # fmt: skip
REQUESTS = (
    "I want a refund for order {id}.",
    "Please refund order {id}.",
    "My order {id} is not what I wanted. I want my money back.",
    "Hello, I would like to return order {id} for a refund.",
    "Order {id} has to go back. Can I get a refund?",
)
CLOSINGS: dict[Action, tuple[str, str]] = {
    "refund": ("Your money is on its way.", "I have refunded your order."),
    "exchange": ("We will exchange your item.", "I can offer you an exchange."),
    "deny": ("I am sorry, the return window is over.", "I am sorry, I can not take it back."),
}
OUTCOME_SHARES: dict[Action, float] = {"refund": 0.37, "exchange": 0.28, "deny": 0.35}
"""Shares of the right actions, chosen so that granting every request, the habit of the base policy, succeeds in little
more than a third of the cases."""


class Case(BaseModel):
    """The hidden state of one task."""

    order_id: str
    item: str
    days: int
    """Days since the purchase."""
    opened: bool
    window: int
    """Return window, in days."""
    opened_ok: bool
    """Whether an opened item is refunded."""

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
            window=dice.choice((7, 14, 21, 30, 45, 60)),
            opened_ok=dice.random() < 0.5,
        )
        if case.right_action == outcome:
            return case


def is_held_out(order_id: int) -> bool:
    """Whether the order number is held out: one in five, drawn so that both splits have numbers of every shape."""
    return random.Random(f"split/{order_id}").random() < 0.2


@cache
def draw_task(order_id: int) -> Task:
    """The task of an order number, always the same one; `data` is its case."""
    request = random.Random(f"request/{order_id}").choice(REQUESTS)
    return Task(id=str(order_id), user=request.format(id=order_id), data=draw_case(order_id).model_dump())


async def look_up_order(order_id: str, task: Task) -> dict[str, object]:
    """Look up an order."""
    return _case(order_id, task).model_dump(include={"item", "days", "opened"})


async def read_policy(item: str, task: Task) -> dict[str, object]:
    """Read the policy of an item."""
    case = Case.model_validate(task.data)
    if item != case.item:
        raise LookupError(f"no policy for {item}")
    return {"window": case.window, "opened_ok": case.opened_ok}


async def refund(order_id: str, task: Task) -> str:
    """Pay the money back."""
    return f"refunded {_case(order_id, task).order_id}"


async def exchange(order_id: str, task: Task) -> str:
    """Exchange the item."""
    return f"exchanged {_case(order_id, task).order_id}"


async def deny(order_id: str, task: Task) -> str:
    """Deny the request."""
    return f"denied {_case(order_id, task).order_id}"


def _case(order_id: str, task: Task) -> Case:
    case = Case.model_validate(task.data)
    if order_id != case.order_id:
        raise LookupError(f"no order {order_id}")
    return case


def calls_made(trajectory: Trajectory) -> Iterator[str]:
    """Names of the tools that were called and answered without an error, in order."""
    names: dict[str, str] = {}
    for message in trajectory.messages():
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call.get("function", {}).get("name", "")
        if message["role"] == "tool" and not message["content"].startswith('{"error"'):
            yield names[message["tool_call_id"]]


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the one right action was taken, and the customer informed."""
    actions = [name for name in calls_made(trajectory) if name in ACTIONS]
    right = Case.model_validate(Task.of(trajectory.metadata).data).right_action
    return actions == [right] and has_closed(trajectory)


def looked_before_acting(trajectory: Trajectory) -> bool:
    """Whether both order and policy were read before the first action."""
    seen: set[str] = set()
    for name in calls_made(trajectory):
        if name in ACTIONS:
            return {"look_up_order", "read_policy"} <= seen
        seen.add(name)
    return False


def hand_reward(trajectory: Trajectory) -> float:
    """A naive hand-written reward: the outcome, with a little credit for looking."""
    return 0.8 * succeeded(trajectory) + 0.2 * looked_before_acting(trajectory)


scenario = shipped(
    "returns_desk",
    DrawnTasks([number for number in range(1000, 10000) if not is_held_out(number)], draw_task),
    DrawnTasks([number for number in range(1000, 10000) if is_held_out(number)], draw_task),
    tools=[look_up_order, read_policy, refund, exchange, deny],
    max_turns=6,
    success=succeeded,
    hand_reward=hand_reward,
    measures={"looked_before_acting": looked_before_acting},
)


Clerk = Literal["careful", "hasty", "guess", "sloppy"]
CLERKS: dict[str, Clerk] = {clerk: clerk for clerk in get_args(Clerk)}


def demonstrate(task: Task, clerk: Clerk, dice: random.Random) -> list[Call | str]:
    """The turns of one clerk at one task: calls, then usually a closing message."""
    case = Case.model_validate(task.data)
    order = {"order_id": case.order_id}
    look, read = Call("look_up_order", order), Call("read_policy", {"item": case.item})
    before: list[Call] = []
    action: Action = dice.choice(ACTIONS)
    match clerk:
        case "careful":
            before, action = [look, read], case.right_action
        case "hasty":
            action = "refund"
        case "sloppy":
            before = dice.choice(([look], [look, read]))
        case "guess":
            pass
    closing = dice.choice(CLOSINGS[action]) if clerk != "sloppy" or dice.random() < 0.7 else ""
    return [*before, Call(action, order), closing]


PLAYERS: dict[str, Player] = {
    "expert": lambda task, _opening, dice: playing(demonstrate(task, "careful", dice)),
    "fool": lambda task, _opening, dice: playing(demonstrate(task, "hasty", dice)),
}
"""Scripted players. The desk's `success` requires only the right action, so guessing succeeds in about a third of the
cases."""
