"""The airline desk: search, book, change and cancel flights by fare rules that are drawn for every task.

Every episode has its own records. Success is their one correct end state, with the right amounts, reached after looking
up the facts that it depends on.
"""

import json
import random
import re
from collections.abc import Generator
from typing import Any

from gavel.prompts import render
from gavel.scenarios.library._airline import Case, Fare, FareRule, Reason, Request, draw_task, refund_of
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory

_TRAIN, _HELD_OUT = range(2000), range(2000, 2500)


class AirlineDesk:
    async def reset(self, task: Task) -> None:
        self._case = Case.model_validate(task.data)
        self._after, self._right = self._case.after, self._case.right
        self._airline = self._case.airline
        self._seen: set[str] = set()
        """Facts that the agent has looked up: numbers of flights and bookings, fares, and searches."""
        self._unseen: list[str] = []
        """Facts that changes depended on and the agent had not looked up before."""
        self._changes: list[tuple[str, ...]] = []

    async def search_flights(self, origin: str, destination: str, day: int) -> list[dict[str, object]]:
        """Flights with free seats from one city to another in so many days from today."""
        found = self._airline.between(origin, destination, day)
        self._seen |= {each.flight for each in found} | {_search(origin, destination, day)}
        hidden = {"origin", "destination", "day", "is_cancelled"}
        return [each.model_dump(exclude=hidden) for each in found]

    async def find_bookings(self, passenger: str) -> list[dict[str, object]]:
        """The bookings of a passenger, with their flights."""
        wanted = " ".join(passenger.split()).casefold()
        mine = [each for each in self._airline.bookings if each.passenger.casefold() == wanted]
        self._seen |= {each.booking for each in mine}
        flights = [self._airline.flight(each.flight) for each in mine]
        shown = {"origin", "destination", "day", "is_cancelled"}
        return [
            each.model_dump() | flight.model_dump(include=shown) for each, flight in zip(mine, flights, strict=True)
        ]

    async def read_fare_rule(self, fare: Fare) -> dict[str, object]:
        """What can be changed and refunded in a fare."""
        self._seen.add(fare)
        return self._case.rules[fare].model_dump()

    async def book_flight(self, flight: str, passenger: str, fare: Fare) -> dict[str, object]:
        """Book a flight for a passenger."""
        made = self._airline.book(flight, passenger, fare)
        self._changed("book_flight", made.flight, needed=[made.flight])
        self._seen.add(made.booking)
        return made.model_dump()

    async def change_flight(self, booking: str, flight: str, charge: int) -> dict[str, object]:
        """Move a booking to another flight, and charge the passenger so many euros."""
        made = self._airline.change(booking, flight, charge)
        self._changed("change_flight", made.flight, str(charge), needed=[made.booking, made.flight, made.fare])
        return made.model_dump()

    async def cancel_booking(self, booking: str, refund: int) -> str:
        """Cancel a booking, and pay so many euros back."""
        mine = self._airline.booking(booking)
        gone = self._airline.cancel(booking, refund)
        self._changed("cancel_booking", str(refund), needed=[mine.booking, *self._rule_of(mine.flight, mine.fare)])
        return f"booking {gone.booking} is cancelled, {gone.refund} euros are paid back"

    async def decline(self, booking: str, request: Request, reason: Reason) -> str:
        """Note that a passenger's request is declined, and why."""
        mine, wish = self._airline.booking(booking), self._case.wish
        self._airline.decline(booking, request, reason)
        search = [_search(wish.origin, wish.destination, wish.day)] if reason in ("no_flight", "too_expensive") else []
        self._changed("decline", reason, needed=[mine.booking, *self._rule_of(mine.flight, mine.fare), *search])
        return f"the request to {request} booking {mine.booking} is declined: {reason}"

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the records are correct, nothing was changed without looking, and the passenger got a final
        message."""
        told = trajectory.status == "finished" and bool(trajectory.closing_text().strip())
        looked = bool(self._changes) and not self._unseen
        return told and looked and self._airline.same_as(self._after)

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: half for the right tool, the rest for its flight, amount or reason."""
        right = self._right
        if len(self._changes) != 1 or self._changes[0][0] != right.tool:
            return 0.0
        told = {
            "book_flight": (right.flight,),
            "change_flight": (right.flight, str(right.amount)),
            "cancel_booking": (str(right.amount),),
            "decline": (right.reason,),
        }[right.tool]
        return 0.5 + 0.5 * (self._changes[0][1:] == told)

    def _rule_of(self, flight: str, fare: Fare) -> list[str]:
        """The fare whose rule decides; none if the airline cancelled the flight and refunds everything."""
        return [] if self._airline.flight(flight).is_cancelled else [fare]

    def _changed(self, *change: str, needed: list[str]) -> None:
        self._changes.append(change)
        self._unseen += [each for each in needed if each not in self._seen]


def _search(origin: str, destination: str, day: int) -> str:
    return f"{origin.strip()} to {destination.strip()} in {day}".casefold()


scenario = Scenario(
    name="airline_desk",
    system=render("scenarios/airline_desk_system.j2").strip(),
    environment=AirlineDesk,
    tasks=DrawnTasks(_TRAIN, draw_task),
    held_out=DrawnTasks(_HELD_OUT, draw_task),
    max_turns=12,
    max_steps=24,
    rubric=render("scenarios/airline_desk_rubric.j2").strip(),
)


_JOURNEY = re.compile(r"from (\w+) to (\w+)")
_DAYS, _BY = re.compile(r"in (\d+) days"), re.compile(r"by (\d\d:\d\d)")
_EUROS, _FARE = re.compile(r"(\d+) euros"), re.compile(r"cheapest (\w+) flight")
_WHO = re.compile(r"I am (\w+ \w+)\.")


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Looks up the facts, reads the rule, computes the amount, acts once and tells the passenger."""
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
    refund = refund_of(mine["paid"], mine["day"], FareRule(**rule), is_cancelled=mine["is_cancelled"])
    if refund < limit:
        return "refund_too_low"
    yield Call("cancel_booking", {"booking": mine["booking"], "refund": refund})
    return None


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Grants every request at once: refunds everything, changes for free, books the earliest departure."""
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
    """Declines every request that can be declined without reading a rule."""
    if "I need" not in opening:
        passenger = _WHO.findall(opening)[0]
        mine = json.loads((yield Call("find_bookings", {"passenger": passenger})))[0]
        request, reason = ("change", "not_allowed") if "move" in opening else ("cancel", "refund_too_low")
        yield Call("decline", {"booking": mine["booking"], "request": request, "reason": reason})
    yield "I am sorry, that cannot be done."


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "refuser": refuser}
