"""The airline desk: search, book, change and cancel flights by fare rules that are drawn for every task.

Every episode has its own records. Changes are checked for feasibility, never against the fare rules: that is the
agent's job. Success is the one correct end state, with the right amounts, reached after looking up the facts that it
depends on.

A task is to book a journey, or to move or cancel a booking. About one in five is impossible as requested, and must be
declined with the reason.
"""

import random
import re
from collections.abc import Generator
from typing import Any, Literal, get_args

from pydantic import BaseModel

from gavel.scenarios.library._shared import ask, drawn, has_closed, shipped
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

Fare = Literal["light", "classic", "flex"]
Request = Literal["change", "cancel"]
Reason = Literal["not_allowed", "too_late", "no_flight", "too_expensive", "refund_too_low"]
FARES: tuple[Fare, ...] = get_args(Fare)
CITIES = ("Oslo", "Lisbon", "Vienna", "Athens", "Dublin", "Prague", "Rome", "Bergen")
NAMES = (
    "Ada Abel", "Bruno Costa", "Chen Ito", "Dora Lund", "Emil Grau", "Farah Kaya", "Goran Hale", "Hanna Fuchs",
    "Ivo Duran",
)  # fmt: skip
_LONGEST_NAME = 80
_DECLINED = 0.22


class Flight(BaseModel):
    flight: str
    origin: str
    destination: str
    day: int
    """Days from today."""
    departs: str
    """Departure time on the 24-hour clock, "07:40"."""
    arrives: str
    prices: dict[Fare, int]
    seats: int
    is_cancelled: bool = False
    """Whether the airline cancelled it."""


class Booking(BaseModel):
    booking: str
    passenger: str
    flight: str
    fare: Fare
    paid: int
    """Price paid, in whole euros."""


class Airline(BaseModel):
    """One airline. An impossible change raises `ValueError`."""

    flights: list[Flight]
    bookings: list[Booking]
    cancelled: list[tuple[str, int]] = []
    """Cancelled bookings, and the refund."""
    declined: list[tuple[str, Request, Reason]] = []
    """Declined requests: booking, request and reason."""
    next_number: int

    def flight(self, flight: str) -> Flight:
        for each in self.flights:
            if each.flight == flight.strip().upper():
                return each
        raise ValueError(f"there is no flight {flight}")

    def booking(self, booking: str) -> Booking:
        for each in self.bookings:
            if each.booking == booking.strip().upper():
                return each
        raise ValueError(f"there is no booking {booking}")

    def between(self, origin: str, destination: str, day: int) -> list[Flight]:
        """Bookable flights, by departure."""
        wanted = journey(origin, destination, day)
        bookable = [each for each in self.flights if each.seats > 0 and not each.is_cancelled]
        found = [each for each in bookable if journey(each.origin, each.destination, each.day) == wanted]
        return sorted(found, key=lambda each: each.departs)

    def with_seat(self, flight: str) -> Flight:
        chosen = self.flight(flight)
        if chosen.is_cancelled:
            raise ValueError(f"flight {chosen.flight} is cancelled")
        if chosen.seats < 1:
            raise ValueError(f"flight {chosen.flight} is full")
        return chosen

    def book(self, flight: str, passenger: str, fare: Fare) -> Booking:
        chosen = self.with_seat(flight)
        if not 0 < len(passenger.strip()) <= _LONGEST_NAME:
            raise ValueError(f"a passenger's name has 1 to {_LONGEST_NAME} characters")
        chosen.seats -= 1
        name, number = " ".join(passenger.split()), f"B{self.next_number}"
        made = Booking(booking=number, passenger=name, flight=chosen.flight, fare=fare, paid=chosen.prices[fare])
        self.next_number += 1
        self.bookings.append(made)
        return made

    @property
    def state(self) -> tuple[object, ...]:
        """The records, regardless of the order of their changes."""
        bookings = [each.model_copy(update={"passenger": each.passenger.casefold()}) for each in self.bookings]
        seats = sorted((each.flight, each.seats) for each in self.flights)
        return sorted(tuple(each) for each in bookings), seats, sorted(self.cancelled), sorted(self.declined)


def journey(origin: str, destination: str, day: int) -> tuple[str, str, int]:
    """A journey for comparison."""
    return origin.strip().casefold(), destination.strip().casefold(), day


class FareRule(BaseModel):
    """The rules of one fare, drawn anew for every task."""

    change: bool
    change_fee: int
    change_days: int
    """Last day before departure on which a flight can be changed."""
    refund_percent: int
    """Percentage of the price that is refunded."""
    refund_fee: int
    """Fee deducted from a refund, in euros."""
    refund_days: int
    """Last day before departure on which there is a refund."""


class Wish(BaseModel):
    kind: Literal["book", "change", "cancel"]
    passenger: str
    origin: str = ""
    destination: str = ""
    day: int = 0
    """Desired day of travel."""
    latest: str = "24:00"
    """Latest arrival time."""
    fare: Fare = "light"
    leaves: str = ""
    """Id of the booking to change or cancel."""
    limit: int = 0
    """Max price that the passenger pays for a change, or min refund that it accepts."""


class Case(BaseModel):
    """The hidden state of a task."""

    airline: Airline
    rules: dict[Fare, FareRule]
    wish: Wish

    @property
    def right(self) -> Call:
        """The one correct change."""
        wish, fitting = self.wish, self.fitting()
        if wish.kind == "book":
            chosen = min(fitting, key=lambda each: each.prices[wish.fare])
            return Call("book_flight", {"flight": chosen.flight, "passenger": wish.passenger, "fare": wish.fare})
        mine = self.airline.booking(wish.leaves)
        flown, rule = self.airline.flight(mine.flight), self.rules[mine.fare]
        if wish.kind == "cancel":
            refund = refund_of(mine.paid, flown.day, rule, is_cancelled=flown.is_cancelled)
            if refund >= wish.limit:
                return Call("cancel_booking", {"booking": mine.booking, "refund": refund})
            reason = "refund_too_low"
        elif not rule.change or flown.day < rule.change_days:
            reason = "too_late" if rule.change else "not_allowed"
        elif not fitting:
            reason = "no_flight"
        else:
            chosen = min(fitting, key=lambda each: each.prices[mine.fare])
            charge = rule.change_fee + max(0, chosen.prices[mine.fare] - mine.paid)
            if charge <= wish.limit:
                return Call("change_flight", {"booking": mine.booking, "flight": chosen.flight, "charge": charge})
            reason = "too_expensive"
        return Call("decline", {"booking": mine.booking, "request": wish.kind, "reason": reason})

    def fitting(self) -> list[Flight]:
        """Flights with a free seat on the day that arrive in time."""
        wish = self.wish
        flights = self.airline.between(wish.origin, wish.destination, wish.day)
        return [each for each in flights if each.arrives <= wish.latest]


def refund_of(paid: int, day: int, rule: FareRule, *, is_cancelled: bool) -> int:
    """The refund in whole euros, rounded down, for a flight in so many days; all of it if the airline cancelled it."""
    if is_cancelled:
        return paid
    return max(0, paid * rule.refund_percent // 100 - rule.refund_fee) if day >= rule.refund_days else 0


def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` is its case."""
    dice = random.Random(f"airline desk {number}")
    kind = dice.choice(("book", "change", "change", "cancel", "cancel"))
    is_declined = kind != "book" and dice.random() < _DECLINED * 5 / 4  # share of all tasks, including bookings
    while True:
        case = _draw_case(dice, kind)
        if case is not None and (case.right.name == "decline") == is_declined:
            return Task(id=f"passenger-{number}", user=_opening(case), data=case.model_dump(mode="json"))


def _draw_case(dice: random.Random, kind: Literal["book", "change", "cancel"]) -> Case | None:
    home, away, other = dice.sample(CITIES, 3)
    numbers = iter(dice.sample(range(100, 1000), 60))
    flights = [
        _draw_flight(dice, f"GV{next(numbers)}", origin, destination, day)
        for origin, destination in ((home, away), (away, home), (home, other))
        for day in dice.sample(range(1, 15), 4)
        for _ in range(dice.randint(2, 4))
    ]
    people = dice.sample(NAMES, 4)
    airline = Airline(flights=flights, bookings=[], next_number=dice.randint(2000, 8000))
    for passenger in [*people, people[0]]:  # the passenger has two bookings, so the right one must be found
        flight = dice.choice([each for each in flights if each.seats > 1])
        if flight.day not in {airline.flight(each.flight).day for each in airline.bookings}:
            airline.book(flight.flight, passenger, dice.choice(FARES))
    if len(airline.bookings) < 5:
        return None
    airline.next_number += dice.randint(1, 900)
    rules: dict[Fare, FareRule] = {
        fare: FareRule(
            change=dice.random() < 0.75,
            change_fee=dice.choice((0, 20, 35, 50)),
            change_days=dice.choice((0, 1, 3, 5)),
            refund_percent=dice.choice((0, 50, 80, 100)),
            refund_fee=dice.choice((0, 10, 25)),
            refund_days=dice.choice((1, 3, 7)),
        )
        for fare in FARES
    }
    mine = airline.bookings[0]
    flown = airline.flight(mine.flight)
    wish = Wish(kind=kind, passenger=people[0])
    if kind == "cancel":
        wish.leaves, wish.limit = mine.booking, dice.choice((1, 20, 40, 80))
        flown.is_cancelled = dice.random() < 0.2 and mine.paid >= wish.limit
        return Case(airline=airline, rules=rules, wish=wish)
    target = flown if kind == "change" else dice.choice(flights)
    wish.origin, wish.destination = way = target.origin, target.destination
    days = sorted({each.day for each in flights if (each.origin, each.destination) == way})
    wish.day = dice.choice([day for day in days if day != flown.day or kind == "book"])
    wish.latest = dice.choice(("12:00", "15:00", "18:00", "23:59"))
    wish.fare = mine.fare if kind == "change" else dice.choice(FARES)
    if kind == "change":
        wish.leaves, wish.limit = mine.booking, dice.choice((60, 100, 150, 250))
    case = Case(airline=airline, rules=rules, wish=wish)
    prices = [each.prices[wish.fare] for each in case.fitting()]
    is_plain = len(set(prices)) == len(prices)  # prices are unique: there is one right answer
    return case if is_plain and (kind != "book" or len(prices) > 1) else None


def _draw_flight(dice: random.Random, flight: str, origin: str, destination: str, day: int) -> Flight:
    departs, lasts = dice.randrange(6 * 60, 19 * 60, 5), dice.randrange(70, 240, 5)
    light = dice.randint(40, 180)
    classic = light + dice.randint(15, 60)
    prices: dict[Fare, int] = {"light": light, "classic": classic, "flex": classic + dice.randint(30, 90)}
    way = {"flight": flight, "origin": origin, "destination": destination, "day": day}
    clock = {name: f"{at // 60:02d}:{at % 60:02d}" for name, at in (("departs", departs), ("arrives", departs + lasts))}
    return Flight.model_validate({**way, **clock, "prices": prices, "seats": dice.choice((0, 2, 5, 9))})


def _opening(case: Case) -> str:
    wish = case.wish
    who = f"Hello, I am {wish.passenger}."
    way = f"from {wish.origin} to {wish.destination}"
    if wish.kind == "book":
        when = f"in {wish.day} days, and I must be there by {wish.latest}"
        return f"{who} I need the cheapest {wish.fare} flight {way} {when}."
    flown = case.airline.flight(case.airline.booking(wish.leaves).flight)
    if wish.kind == "change":
        return (
            f"{who} I have a flight {way} in {flown.day} days. Please move it to the cheapest one in {wish.day} "
            f"days that arrives by {wish.latest}. I pay at most {wish.limit} euros more; otherwise leave it as it is."
        )
    return (
        f"{who} I cannot take my flight from {flown.origin} to {flown.destination} in {flown.day} days. Please cancel "
        f"it if I get back at least {wish.limit} euros; otherwise leave it as it is."
    )


class AirlineDesk:
    async def reset(self, task: Task) -> None:
        case = Case.model_validate(task.data)
        self._open(case.model_copy(deep=True))
        await getattr(self, case.right.name)(**case.right.arguments)
        self._right, self._after = self._changes, self._airline.state
        self._open(case)

    def _open(self, case: Case) -> None:
        self._case, self._airline = case, case.airline
        self._seen: set[object] = set()
        """Facts that the agent has looked up: numbers of flights and bookings, fares, and journeys."""
        self._is_blind = False
        """Whether a change depended on a fact that the agent had not looked up before."""
        self._changes: list[Call] = []

    async def search_flights(self, origin: str, destination: str, day: int) -> list[dict[str, object]]:
        """Flights with free seats from one city to another in so many days from today."""
        found = self._airline.between(origin, destination, day)
        self._seen |= {each.flight for each in found} | {journey(origin, destination, day)}
        return [each.model_dump(exclude={"origin", "destination", "day", "is_cancelled"}) for each in found]

    async def find_bookings(self, passenger: str) -> list[dict[str, object]]:
        """The bookings of a passenger, with their flights."""
        wanted = " ".join(passenger.split()).casefold()
        mine = [each for each in self._airline.bookings if each.passenger.casefold() == wanted]
        self._seen |= {each.booking for each in mine}
        shown = {"origin", "destination", "day", "is_cancelled"}
        return [each.model_dump() | self._airline.flight(each.flight).model_dump(include=shown) for each in mine]

    async def read_fare_rule(self, fare: Fare) -> dict[str, object]:
        """What can be changed and refunded in a fare."""
        self._seen.add(fare)
        return self._case.rules[fare].model_dump()

    async def book_flight(self, flight: str, passenger: str, fare: Fare) -> dict[str, object]:
        """Book a flight for a passenger."""
        made = self._airline.book(flight, passenger, fare)
        self._changed("book_flight", made.flight, flight=made.flight)
        self._seen.add(made.booking)
        return made.model_dump()

    async def change_flight(self, booking: str, flight: str, charge: int) -> dict[str, object]:
        """Move a booking to another flight, and charge the passenger so many euros."""
        mine = self._airline.booking(booking)
        if charge < 0:
            raise ValueError("a charge is not negative")
        chosen = self._airline.with_seat(flight)
        if chosen.flight == mine.flight:
            raise ValueError(f"booking {mine.booking} is for {mine.flight} already")
        self._airline.flight(mine.flight).seats += 1
        chosen.seats -= 1
        mine.flight = chosen.flight
        mine.paid += charge
        self._changed("change_flight", mine.booking, mine.flight, mine.fare, flight=mine.flight, charge=charge)
        return mine.model_dump()

    async def cancel_booking(self, booking: str, refund: int) -> str:
        """Cancel a booking, and pay so many euros back."""
        mine = self._airline.booking(booking)
        if not 0 <= refund <= mine.paid:
            raise ValueError(f"a refund is from 0 to {mine.paid}, what was paid")
        self._airline.flight(mine.flight).seats += 1
        self._airline.bookings.remove(mine)
        self._airline.cancelled.append((mine.booking, refund))
        self._changed("cancel_booking", *self._facts_about(mine), refund=refund)
        return f"booking {mine.booking} is cancelled, {refund} euros are paid back"

    async def decline(self, booking: str, request: Request, reason: Reason) -> str:
        """Note that a passenger's request is declined, and why."""
        mine, wish = self._airline.booking(booking), self._case.wish
        if (entry := (mine.booking, request, reason)) in self._airline.declined:
            raise ValueError("this is declined already")
        self._airline.declined.append(entry)
        search = [journey(wish.origin, wish.destination, wish.day)] if reason in ("no_flight", "too_expensive") else []
        self._changed("decline", *self._facts_about(mine), *search, reason=reason)
        return f"the request to {request} booking {mine.booking} is declined: {reason}"

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the records are correct, nothing was changed without looking, and the passenger got a final
        message."""
        looked = bool(self._changes) and not self._is_blind
        return has_closed(trajectory) and looked and self._airline.state == self._after

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: half for the right tool, the rest for its flight, amount or reason."""
        is_tool = [change.name for change in self._changes] == [change.name for change in self._right]
        return 0.5 * is_tool + 0.5 * (self._changes == self._right)

    def _facts_about(self, mine: Booking) -> list[str]:
        """The booking, and the fare whose rule decides, unless the airline cancelled the flight and refunds it all."""
        return [mine.booking, *([] if self._airline.flight(mine.flight).is_cancelled else [mine.fare])]

    def _changed(self, tool: str, *needed: object, **values: str | int) -> None:
        self._changes.append(Call(tool, values))
        self._is_blind |= not self._seen.issuperset(needed)


scenario = shipped("airline_desk", *drawn(draw_task, 2000, 500), environment=AirlineDesk, max_turns=12, max_steps=24)


_WHO, _WAY, _DAYS = r"I am (\w+ \w+)\.", r"from (\w+) to (\w+)", r"in (\d+) days"


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Looks up the facts, reads the rule, computes the amount, acts once and tells the passenger."""
    passenger, days = re.findall(_WHO, opening)[0], [int(day) for day in re.findall(_DAYS, opening)]
    if "I need" in opening:
        fare = re.findall(r"cheapest (\w+) flight", opening)[0]
        chosen = yield from _cheapest(opening, days[0], fare)
        yield Call("book_flight", {"flight": chosen["flight"], "passenger": passenger, "fare": fare})
        yield f"You are booked on {chosen['flight']}."
        return
    found = yield from ask("find_bookings", passenger=passenger)
    way = (*re.findall(_WAY, opening)[0], days[0])
    mine = next(each for each in found if (each["origin"], each["destination"], each["day"]) == way)
    rule = yield from ask("read_fare_rule", fare=mine["fare"])
    limit, request, reason = int(re.findall(r"(\d+) euros", opening)[0]), "cancel", ""
    if "move" in opening:
        request, reason = "change", (yield from _change(opening, days[1], mine, rule, limit))
    elif (refund := refund_of(mine["paid"], mine["day"], FareRule(**rule), is_cancelled=mine["is_cancelled"])) < limit:
        reason = "refund_too_low"
    else:
        yield Call("cancel_booking", {"booking": mine["booking"], "refund": refund})
    if reason:
        yield Call("decline", {"booking": mine["booking"], "request": request, "reason": reason})
    yield f"I have left your booking as it is: {reason}." if reason else "It is done."


def _change(opening: str, day: int, mine: Any, rule: Any, limit: int) -> Generator[Call | str, str, str]:
    """Changes the flight; gives the reason, if that is to be declined."""
    if not rule["change"]:
        return "not_allowed"
    if mine["day"] < rule["change_days"]:
        return "too_late"
    if (chosen := (yield from _cheapest(opening, day, mine["fare"]))) is None:
        return "no_flight"
    charge = rule["change_fee"] + max(0, chosen["prices"][mine["fare"]] - mine["paid"])
    if charge > limit:
        return "too_expensive"
    yield Call("change_flight", {"booking": mine["booking"], "flight": chosen["flight"], "charge": charge})
    return ""


def _cheapest(opening: str, day: int, fare: str) -> Generator[Call | str, str, Any]:
    """The cheapest flight that arrives in time; None without one."""
    flights = yield from _search(opening, day)
    latest = re.findall(r"by (\d\d:\d\d)", opening)[0]
    return min((each for each in flights if each["arrives"] <= latest), key=lambda it: it["prices"][fare], default=None)


def _search(opening: str, day: int) -> Generator[Call | str, str, Any]:
    origin, destination = re.findall(_WAY, opening)[0]
    return (yield from ask("search_flights", origin=origin, destination=destination, day=day))


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Grants every request at once: refunds everything, changes for free, books the earliest departure."""
    passenger, mine = re.findall(_WHO, opening)[0], None
    if "I need" not in opening:
        (mine, *_) = yield from ask("find_bookings", passenger=passenger)
    if mine and "cannot take" in opening:
        yield Call("cancel_booking", {"booking": mine["booking"], "refund": mine["paid"]})
    elif flights := (yield from _search(opening, int(re.findall(_DAYS, opening)[-1]))):
        flight = flights[0]["flight"]
        if mine:
            yield Call("change_flight", {"booking": mine["booking"], "flight": flight, "charge": 0})
        else:
            yield Call("book_flight", {"flight": flight, "passenger": passenger, "fare": "light"})
    yield "It is done."


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
