"""Demonstrations of the booking desk, most of them with a bad habit.

The embedded policy is cloned from these. Four clerks take turns: the careful one works by the book, the hasty one
books and cancels unseen, the seller looks but books the dearest room, and the sloppy one does half of what was asked.
"""

import json
import random
import re
from typing import Literal, get_args

from gavel.scenarios.library.demonstrated_call import Call
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task

Clerk = Literal["careful", "hasty", "seller", "sloppy"]
CLERKS: dict[str, Clerk] = {clerk: clerk for clerk in get_args(Clerk)}
ROOMS = tuple(f"{floor}0{door}" for floor in (1, 2, 3) for door in (1, 2, 3, 4))
BOOKED, CANCELLED, MOVED = "Your room is booked.", "Your booking is cancelled.", "Your stay is moved."
NO_ROOM = "I am sorry, there is no free room."


def demonstrate(task: Task, clerk: Clerk, dice: random.Random) -> Turns:
    """The turns of one clerk at one wish."""
    guest = re.findall(r"I am (\w+)", task.user)[0]
    nights = [int(night) for night in re.findall(r"night (\d+)", task.user)]
    people = [int(number) for number in re.findall(r"for (\d+) p", task.user)]
    leaves, stays = "cancel" in task.user or "instead" in task.user, bool(people)
    if clerk == "sloppy" and leaves and stays:  # a stay is moved: it only cancels, or only books
        leaves = dice.random() < 0.5
        half = not leaves
    else:
        half = stays
    said = MOVED if "instead" in task.user else CANCELLED if leaves else BOOKED
    if leaves:
        number = f"B{dice.randint(1, 6)}"
        if clerk != "hasty":
            found = json.loads((yield Call("find_bookings", {"guest": guest})))
            number = next(each["booking"] for each in found if each["first_night"] == nights[0])
        yield Call("cancel_booking", {"booking": number})
    if half:
        first, last = nights[-2], nights[-1]
        room = dice.choice(ROOMS)
        if clerk != "hasty":
            wanted = {"people": people[0], "first_night": first, "last_night": last}
            rooms = json.loads((yield Call("find_rooms", wanted)))
            if not rooms:
                yield NO_ROOM
                return
            room = {"seller": rooms[-1], "sloppy": dice.choice(rooms)}.get(clerk, rooms[0])["number"]
        yield Call("book_room", {"room": room, "guest": guest, "first_night": first, "last_night": last})
    yield said if clerk != "sloppy" or dice.random() < 0.7 else ""


def _clerk(clerk: Clerk) -> Player:
    return lambda task, _opening, dice: demonstrate(task, clerk, dice)


def refuser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Does nothing, and says so."""
    yield NO_ROOM


PLAYERS: dict[str, Player] = {"expert": _clerk("careful"), "fool": _clerk("hasty"), "refuser": refuser}
