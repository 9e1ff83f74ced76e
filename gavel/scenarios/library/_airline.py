"""An airline's records: flights, bookings and what was declined.

Changes are checked for feasibility, never against the fare rules: that is the agent's job.

The passengers' wishes, and the correct records afterwards, follow from the number of the task.

A task is to book a journey, or to move or cancel a booking. About one in five is impossible as requested, and must be
declined with the reason.
"""

import random
from functools import cache
from typing import Literal

from pydantic import BaseModel

from gavel.scenarios.task import Task

Fare = Literal["light", "classic", "flex"]
Request = Literal["change", "cancel"]
Reason = Literal["not_allowed", "too_late", "no_flight", "too_expensive", "refund_too_low"]

_LONGEST_NAME = 80


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


class Cancelled(BaseModel):
    booking: str
    refund: int


class Airline(BaseModel):
    """One airline. An impossible change raises `ValueError`."""

    flights: list[Flight]
    bookings: list[Booking]
    cancelled: list[Cancelled] = []
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
        wanted = (origin.strip().casefold(), destination.strip().casefold(), day)
        found = [
            each
            for each in self.flights
            if (each.origin.casefold(), each.destination.casefold(), each.day) == wanted
            and each.seats > 0
            and not each.is_cancelled
        ]
        return sorted(found, key=lambda each: each.departs)

    def book(self, flight: str, passenger: str, fare: Fare) -> Booking:
        chosen = self._with_seat(flight)
        if not 0 < len(passenger.strip()) <= _LONGEST_NAME:
            raise ValueError(f"a passenger's name has 1 to {_LONGEST_NAME} characters")
        chosen.seats -= 1
        made = Booking(
            booking=f"B{self.next_number}",
            passenger=" ".join(passenger.split()),
            flight=chosen.flight,
            fare=fare,
            paid=chosen.prices[fare],
        )
        self.next_number += 1
        self.bookings.append(made)
        return made

    def change(self, booking: str, flight: str, charge: int) -> Booking:
        mine = self.booking(booking)
        if charge < 0:
            raise ValueError("a charge is not negative")
        chosen = self._with_seat(flight)
        if chosen.flight == mine.flight:
            raise ValueError(f"booking {mine.booking} is for {mine.flight} already")
        self.flight(mine.flight).seats += 1
        chosen.seats -= 1
        mine.flight = chosen.flight
        mine.paid += charge
        return mine

    def cancel(self, booking: str, refund: int) -> Cancelled:
        mine = self.booking(booking)
        if not 0 <= refund <= mine.paid:
            raise ValueError(f"a refund is from 0 to {mine.paid}, what was paid")
        self.flight(mine.flight).seats += 1
        self.bookings.remove(mine)
        gone = Cancelled(booking=mine.booking, refund=refund)
        self.cancelled.append(gone)
        return gone

    def decline(self, booking: str, request: Request, reason: Reason) -> None:
        entry = (self.booking(booking).booking, request, reason)
        if entry in self.declined:
            raise ValueError("this is declined already")
        self.declined.append(entry)

    def same_as(self, other: "Airline") -> bool:
        """Whether the records agree, regardless of the order of their changes."""
        return self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        bookings = sorted(
            (each.booking, each.passenger.casefold(), each.flight, each.fare, each.paid) for each in self.bookings
        )
        seats = sorted((each.flight, each.seats) for each in self.flights)
        cancelled = sorted((each.booking, each.refund) for each in self.cancelled)
        return (bookings, seats, cancelled, sorted(self.declined))

    def _with_seat(self, flight: str) -> Flight:
        chosen = self.flight(flight)
        if chosen.is_cancelled:
            raise ValueError(f"flight {chosen.flight} is cancelled")
        if chosen.seats < 1:
            raise ValueError(f"flight {chosen.flight} is full")
        return chosen


Kind = Literal["book", "change", "cancel"]
FARES: tuple[Fare, ...] = ("light", "classic", "flex")
CITIES = ("Oslo", "Lisbon", "Vienna", "Athens", "Dublin", "Prague", "Rome", "Bergen")
NAMES = (
    "Ada Abel", "Bruno Costa", "Chen Ito", "Dora Lund", "Emil Grau", "Farah Kaya", "Goran Hale", "Hanna Fuchs",
    "Ivo Duran",
)  # fmt: skip
_DECLINED = 0.22


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
    kind: Kind
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


class Change(BaseModel):
    """The one correct change of the records."""

    tool: Literal["book_flight", "change_flight", "cancel_booking", "decline"]
    flight: str = ""
    amount: int = 0
    reason: Reason = "not_allowed"


class Case(BaseModel):
    """The hidden state of a task."""

    airline: Airline
    rules: dict[Fare, FareRule]
    wish: Wish

    @property
    def right(self) -> Change:
        match self.wish.kind:
            case "book":
                return Change(tool="book_flight", flight=self._cheapest(self.wish.fare).flight)
            case "change":
                return self._right_of_change()
            case "cancel":
                return self._right_of_cancel()

    @property
    def after(self) -> Airline:
        """The correct records at the end."""
        airline, change, wish = self.airline.model_copy(deep=True), self.right, self.wish
        match change.tool:
            case "book_flight":
                airline.book(change.flight, wish.passenger, wish.fare)
            case "change_flight":
                airline.change(wish.leaves, change.flight, change.amount)
            case "cancel_booking":
                airline.cancel(wish.leaves, change.amount)
            case "decline":
                airline.decline(wish.leaves, "change" if wish.kind == "change" else "cancel", change.reason)
        return airline

    def fitting(self) -> list[Flight]:
        """Flights with a free seat on the day that arrive in time."""
        wish = self.wish
        return [
            each
            for each in self.airline.between(wish.origin, wish.destination, wish.day)
            if each.arrives <= wish.latest
        ]

    def _cheapest(self, fare: Fare) -> Flight:
        return min(self.fitting(), key=lambda each: each.prices[fare])

    def _right_of_change(self) -> Change:
        mine = self.airline.booking(self.wish.leaves)
        rule, flown = self.rules[mine.fare], self.airline.flight(mine.flight)
        if not rule.change:
            return Change(tool="decline", reason="not_allowed")
        if flown.day < rule.change_days:
            return Change(tool="decline", reason="too_late")
        if not self.fitting():
            return Change(tool="decline", reason="no_flight")
        chosen = self._cheapest(mine.fare)
        charge = rule.change_fee + max(0, chosen.prices[mine.fare] - mine.paid)
        if charge > self.wish.limit:
            return Change(tool="decline", reason="too_expensive")
        return Change(tool="change_flight", flight=chosen.flight, amount=charge)

    def _right_of_cancel(self) -> Change:
        mine = self.airline.booking(self.wish.leaves)
        flown = self.airline.flight(mine.flight)
        refund = refund_of(mine.paid, flown.day, self.rules[mine.fare], is_cancelled=flown.is_cancelled)
        if refund < self.wish.limit:
            return Change(tool="decline", reason="refund_too_low")
        return Change(tool="cancel_booking", amount=refund)


def refund_of(paid: int, day: int, rule: FareRule, *, is_cancelled: bool) -> int:
    """The refund in whole euros, rounded down, for a flight in so many days; all of it if the airline cancelled it."""
    if is_cancelled:
        return paid
    return max(0, paid * rule.refund_percent // 100 - rule.refund_fee) if day >= rule.refund_days else 0


@cache
def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` is its case."""
    dice = random.Random(f"airline desk {number}")
    kind: Kind = dice.choice(("book", "change", "change", "cancel", "cancel"))
    is_declined = kind != "book" and dice.random() < _DECLINED * 5 / 4  # share of all tasks, including bookings
    while True:
        case = _draw_case(dice, kind)
        if case is not None and (case.right.tool == "decline") == is_declined:
            return Task(id=f"passenger-{number}", user=_opening(case), data=case.model_dump(mode="json"))


def _draw_case(dice: random.Random, kind: Kind) -> Case | None:
    cities = dice.sample(CITIES, 3)
    numbers = iter(dice.sample(range(100, 1000), 60))
    flights = [
        _draw_flight(dice, f"GV{next(numbers)}", origin, destination, day)
        for origin, destination in ((cities[0], cities[1]), (cities[1], cities[0]), (cities[0], cities[2]))
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
    rules: dict[Fare, FareRule] = {fare: _rule(dice) for fare in FARES}
    mine = airline.bookings[0]
    flown = airline.flight(mine.flight)
    wish = Wish(kind=kind, passenger=people[0])
    if kind == "cancel":
        wish.leaves = mine.booking
        wish.limit = dice.choice((1, 20, 40, 80))
        flown.is_cancelled = dice.random() < 0.2 and mine.paid >= wish.limit
        return Case(airline=airline, rules=rules, wish=wish)
    target = flown if kind == "change" else dice.choice(flights)
    wish.origin, wish.destination = target.origin, target.destination
    days = sorted(
        {each.day for each in flights if (each.origin, each.destination) == (target.origin, target.destination)}
    )
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
    return Flight(
        flight=flight,
        origin=origin,
        destination=destination,
        day=day,
        departs=_clock(departs),
        arrives=_clock(departs + lasts),
        prices={"light": light, "classic": classic, "flex": classic + dice.randint(30, 90)},
        seats=dice.choice((0, 2, 5, 9)),
    )


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _rule(dice: random.Random) -> FareRule:
    return FareRule(
        change=dice.random() < 0.75,
        change_fee=dice.choice((0, 20, 35, 50)),
        change_days=dice.choice((0, 1, 3, 5)),
        refund_percent=dice.choice((0, 50, 80, 100)),
        refund_fee=dice.choice((0, 10, 25)),
        refund_days=dice.choice((1, 3, 7)),
    )


def _opening(case: Case) -> str:
    wish = case.wish
    who = f"Hello, I am {wish.passenger}."
    journey = f"from {wish.origin} to {wish.destination}"
    if wish.kind == "book":
        when = f"in {wish.day} days, and I must be there by {wish.latest}"
        return f"{who} I need the cheapest {wish.fare} flight {journey} {when}."
    mine = case.airline.booking(wish.leaves)
    flown = case.airline.flight(mine.flight)
    if wish.kind == "change":
        return (
            f"{who} I have a flight {journey} in {flown.day} days. Please move it to the cheapest one in {wish.day} "
            f"days that arrives by {wish.latest}. I pay at most {wish.limit} euros more; otherwise leave it as it is."
        )
    mine_goes = f"from {flown.origin} to {flown.destination} in {flown.day} days"
    return (
        f"{who} I cannot take my flight {mine_goes}. Please cancel it if I get back at least {wish.limit} euros; "
        "otherwise leave it as it is."
    )
