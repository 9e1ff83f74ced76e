"""Demonstrations of the returns desk, most of them with a bad habit.

The embedded policy is cloned from these. Four clerks take turns: the careful one works by the book,
the hasty one grants the refund unseen, the guesser acts unseen at random, and the sloppy one looks,
at the order at least, but acts at random all the same and sometimes forgets to tell the customer.
"""

import random
from typing import Literal, get_args

from gavel.scenarios.library.demonstrated_call import Call
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.library.returns_desk.cases import ACTIONS, Action, Case
from gavel.scenarios.task import Task

Clerk = Literal["careful", "hasty", "guess", "sloppy"]
CLERKS: dict[str, Clerk] = {clerk: clerk for clerk in get_args(Clerk)}

CLOSINGS: dict[Action, tuple[str, ...]] = {
    "refund": ("Your money is on its way.", "I have refunded your order."),
    "exchange": ("We will exchange your item.", "I can offer you an exchange."),
    "deny": ("I am sorry, the return window is over.", "I am sorry, I can not take it back."),
}


def demonstrate(task: Task, clerk: Clerk, dice: random.Random) -> list[Call | str]:
    """The turns of one clerk at one task: calls, then usually a closing message."""
    case = Case.model_validate(task.data)
    order = {"order_id": case.order_id}
    look, read = Call("look_up_order", order), Call("read_policy", {"item": case.item})
    anything: Action = dice.choice(ACTIONS)
    before: list[Call]
    action: Action
    match clerk:
        case "careful":
            before, action = [look, read], case.right_action
        case "hasty":
            before, action = [], "refund"
        case "guess":
            before, action = [], anything
        case "sloppy":
            before, action = dice.choice(([look], [look, read])), anything
    turns: list[Call | str] = [*before, Call(action, order)]
    if clerk != "sloppy" or dice.random() < 0.7:
        turns.append(dice.choice(CLOSINGS[action]))
    else:
        turns.append("")
    return turns


def _clerk(clerk: Clerk) -> Player:
    def play(task: Task, opening: str, dice: random.Random) -> Turns:
        for turn in demonstrate(task, clerk, dice):  # noqa: UP028 - a list takes no results
            yield turn

    return play


def refuser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Denies every request unseen."""
    yield Call("deny", {"order_id": str(task.data["order_id"])})
    yield "I am sorry, the return window is over."


PLAYERS: dict[str, Player] = {"expert": _clerk("careful"), "fool": _clerk("hasty"), "refuser": refuser}
"""The desk's `success` asks for the right action alone, so who guesses succeeds in about a third of the cases."""
