"""The returns desk: look up an order, read the policy of its item, then refund, exchange or deny.

Every customer asks for a refund; what is right depends on facts that only the tools tell.
"""

from collections.abc import Iterator

from gavel.prompts import render
from gavel.scenarios.library.drawn_tasks import DrawnTasks
from gavel.scenarios.library.returns_desk.cases import ACTIONS, Case, draw_task, split_numbers
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


async def look_up_order(order_id: str, task: Task) -> dict[str, object]:
    """Look up an order."""
    case = _case(order_id, task)
    return {"item": case.item, "days": case.days, "opened": case.opened}


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
    """Whether the one right action was taken, and the customer told."""
    actions = [name for name in calls_made(trajectory) if name in ACTIONS]
    right = Case.model_validate(Task.of(trajectory.metadata).data).right_action
    return actions == [right] and _closed(trajectory)


def looked_before_acting(trajectory: Trajectory) -> bool:
    """Whether order and policy were both read before the first action."""
    seen: set[str] = set()
    for name in calls_made(trajectory):
        if name in ACTIONS:
            return {"look_up_order", "read_policy"} <= seen
        seen.add(name)
    return False


def hand_reward(trajectory: Trajectory) -> float:
    """What somebody might write by hand: the outcome, with a little credit for looking."""
    return 0.8 * succeeded(trajectory) + 0.2 * looked_before_acting(trajectory)


def _closed(trajectory: Trajectory) -> bool:
    last = trajectory.messages()[-1]
    return trajectory.status == "finished" and last["role"] == "assistant" and bool((last.get("content") or "").strip())


scenario = Scenario(
    name="returns_desk",
    system=render("scenarios/returns_desk_system.j2").strip(),
    tools=[look_up_order, read_policy, refund, exchange, deny],
    tasks=DrawnTasks(split_numbers(held_out=False), draw_task),
    held_out=DrawnTasks(split_numbers(held_out=True), draw_task),
    max_turns=6,
    rubric=render("scenarios/returns_desk_rubric.j2").strip(),
    success=succeeded,
    hand_reward=hand_reward,
    measures={"looked_before_acting": looked_before_acting},
)
