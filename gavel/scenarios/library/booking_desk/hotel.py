"""The hotel's books: rooms, and who has them in which nights."""

from pydantic import BaseModel

Entry = tuple[str, str, int, int]
"""Room, guest, first and last night."""
_LONGEST_NAME = 80


class Room(BaseModel):
    number: str
    beds: int
    price: int
    """Of a night."""


class Booking(BaseModel):
    room: str
    guest: str
    first_night: int
    last_night: int

    def overlaps(self, first_night: int, last_night: int) -> bool:
        return self.first_night <= last_night and first_night <= self.last_night


class Hotel(BaseModel):
    """Rooms and bookings; a booking's id is never given twice."""

    rooms: list[Room]
    bookings: dict[str, Booking] = {}
    next_id: int = 1

    def free_rooms(self, people: int, first_night: int, last_night: int) -> list[Room]:
        """Rooms that are large enough and free in all these nights, the cheapest first."""
        fitting = [
            room for room in self.rooms if room.beds >= people and self.is_free(room.number, first_night, last_night)
        ]
        return sorted(fitting, key=lambda room: room.price)

    def is_free(self, room: str, first_night: int, last_night: int) -> bool:
        return not any(each.room == room and each.overlaps(first_night, last_night) for each in self.bookings.values())

    def book(self, booking: Booking) -> str:
        """The id of a new booking. Raises `ValueError` where it cannot be made."""
        if booking.room not in {room.number for room in self.rooms}:
            raise ValueError(f"there is no room {booking.room}")
        if len(booking.guest) > _LONGEST_NAME:
            raise ValueError(f"a guest's name has at most {_LONGEST_NAME} characters")
        if booking.first_night > booking.last_night:
            raise ValueError("the last night is before the first")
        if not self.is_free(booking.room, booking.first_night, booking.last_night):
            raise ValueError(f"room {booking.room} is taken in one of these nights")
        number = f"B{self.next_id}"
        self.next_id += 1
        self.bookings[number] = booking
        return number

    def cancel(self, number: str) -> None:
        """Raises `ValueError` for a booking that is not there."""
        if number not in self.bookings:
            raise ValueError(f"there is no booking {number}")
        del self.bookings[number]

    @property
    def books(self) -> set[Entry]:
        """What is booked, without the ids: two ways to the same books are equal."""
        return {(each.room, each.guest, each.first_night, each.last_night) for each in self.bookings.values()}
