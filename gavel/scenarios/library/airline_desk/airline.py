"""An airline's records: flights, bookings and what was declined.

Every change is checked for what is possible, never for what the fare rules allow: that is the agent's work.
"""

from typing import Literal

from pydantic import BaseModel

Fare = Literal["light", "classic", "flex"]
Request = Literal["change", "cancel"]
Reason = Literal["not_allowed", "too_late", "no_flight", "too_expensive", "refund_too_low"]

_LONGEST_NAME = 80


class Flight(BaseModel):
    flight: str
    origin: str
    destination: str
    day: int
    """In so many days from today."""
    departs: str
    """Of the 24-hour clock, "07:40"."""
    arrives: str
    prices: dict[Fare, int]
    seats: int
    is_cancelled: bool = False
    """By the airline."""


class Booking(BaseModel):
    booking: str
    passenger: str
    flight: str
    fare: Fare
    paid: int
    """Whole euros."""


class Cancelled(BaseModel):
    booking: str
    refund: int


class Airline(BaseModel):
    """One airline. What cannot be done raises `ValueError`."""

    flights: list[Flight]
    bookings: list[Booking]
    cancelled: list[Cancelled] = []
    declined: list[tuple[str, Request, Reason]] = []
    """Booking, request and reason."""
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
        """Flights that can be booked, by departure."""
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
        """Whether the records agree, in whatever order they were changed."""
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
