"""Scripted players of the airline desk. They know what an agent knows: the passenger's words and the tools' answers."""

import json
import random
import re
from collections.abc import Generator
from typing import Any

from gavel.scenarios.library.demonstrated_call import Call
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task

_JOURNEY = re.compile(r"from (\w+) to (\w+)")
_DAYS, _BY = re.compile(r"in (\d+) days"), re.compile(r"by (\d\d:\d\d)")
_EUROS, _FARE = re.compile(r"(\d+) euros"), re.compile(r"cheapest (\w+) flight")
_WHO = re.compile(r"I am (\w+ \w+)\.")


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Looks, reads the rule, computes the amount, acts once and tells."""
    passenger, days = _WHO.findall(opening)[0], [int(day) for day in _DAYS.findall(opening)]
    if "I need" in opening:
        fare = _FARE.findall(opening)[0]
        chosen = yield from _cheapest(opening, days[0], fare)
        yield Call("book_flight", {"flight": chosen["flight"], "passenger": passenger, "fare": fare})
        yield f"You are booked on {chosen['flight']}."
        return
    found = json.loads((yield Call("find_bookings", {"passenger": passenger})))
    way = _JOURNEY.findall(opening)[0]
    mine = next(each for each in found if (each["origin"], each["destination"], each["day"]) == (*way, days[0]))
    rule = json.loads((yield Call("read_fare_rule", {"fare": mine["fare"]})))
    limit = int(_EUROS.findall(opening)[0])
    if "move" in opening:
        reason = yield from _change(opening, days[1], mine, rule, limit)
        request = "change"
    else:
        reason = yield from _cancel(mine, rule, limit)
        request = "cancel"
    if reason:
        yield Call("decline", {"booking": mine["booking"], "request": request, "reason": reason})
        yield f"I have left your booking as it is: {reason}."
    else:
        yield "It is done."


def _cheapest(opening: str, day: int, fare: str) -> Generator[Call | str, str, Any]:
    """The cheapest flight that arrives in time; None without one."""
    origin, destination = _JOURNEY.findall(opening)[0]
    asked = {"origin": origin, "destination": destination, "day": day}
    flights = json.loads((yield Call("search_flights", asked)))
    fitting = [each for each in flights if each["arrives"] <= _BY.findall(opening)[0]]
    return min(fitting, key=lambda each: each["prices"][fare], default=None)


def _change(opening: str, day: int, mine: Any, rule: Any, limit: int) -> Generator[Call | str, str, str | None]:
    if not rule["change"]:
        return "not_allowed"
    if mine["day"] < rule["change_days"]:
        return "too_late"
    chosen = yield from _cheapest(opening, day, mine["fare"])
    if chosen is None:
        return "no_flight"
    charge = rule["change_fee"] + max(0, chosen["prices"][mine["fare"]] - mine["paid"])
    if charge > limit:
        return "too_expensive"
    yield Call("change_flight", {"booking": mine["booking"], "flight": chosen["flight"], "charge": charge})
    return None


def _cancel(mine: Any, rule: Any, limit: int) -> Generator[Call | str, str, str | None]:
    refund = max(0, mine["paid"] * rule["refund_percent"] // 100 - rule["refund_fee"])
    if mine["day"] < rule["refund_days"]:
        refund = 0
    if mine["is_cancelled"]:
        refund = mine["paid"]
    if refund < limit:
        return "refund_too_low"
    yield Call("cancel_booking", {"booking": mine["booking"], "refund": refund})
    return None


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Does at once what is asked for: pays everything back, moves for nothing, books what leaves first."""
    passenger, day = _WHO.findall(opening)[0], int(_DAYS.findall(opening)[-1])
    mine: Any = None
    if "I need" not in opening:
        mine = json.loads((yield Call("find_bookings", {"passenger": passenger})))[0]
    if "cannot take" in opening:
        yield Call("cancel_booking", {"booking": mine["booking"], "refund": mine["paid"]})
    else:
        origin, destination = _JOURNEY.findall(opening)[0]
        asked = {"origin": origin, "destination": destination, "day": day}
        flights = json.loads((yield Call("search_flights", asked)))
        if flights and mine:
            yield Call("change_flight", {"booking": mine["booking"], "flight": flights[0]["flight"], "charge": 0})
        elif flights:
            yield Call("book_flight", {"flight": flights[0]["flight"], "passenger": passenger, "fare": "light"})
    yield "It is done."


def refuser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Declines what can be declined without reading a rule."""
    if "I need" not in opening:
        passenger = _WHO.findall(opening)[0]
        mine = json.loads((yield Call("find_bookings", {"passenger": passenger})))[0]
        request, reason = ("change", "not_allowed") if "move" in opening else ("cancel", "refund_too_low")
        yield Call("decline", {"booking": mine["booking"], "request": request, "reason": reason})
    yield "I am sorry, that cannot be done."


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "refuser": refuser}
