"""The booking desk: a guest's wish, a hotel's books that the agent changes, and only one right end state.

Every episode has its own hotel. Success is determined from the books, which the judge does not see.

The embedded policy is cloned from `demonstrate`, mostly from bad habits. Four clerks alternate: the careful one follows
the rules, the hasty one books and cancels without looking, the seller looks but books the most expensive room, and the
sloppy one does half of the request.
"""

import random
import re
from typing import Any, Literal, get_args

from pydantic import BaseModel

from gavel.scenarios.library._shared import ask, drawn, has_closed, shipped
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

GUESTS = ("Ada", "Bruno", "Chen", "Dora", "Emil", "Farah", "Goran", "Hanna", "Ivo", "Jana", "Kofi", "Lena")
ROOMS = tuple(f"{floor}0{door}" for floor in (1, 2, 3) for door in (1, 2, 3, 4))
NIGHTS = 14
_LONGEST_NAME = 80


class Room(BaseModel):
    number: str
    beds: int
    price: int
    """Price of a night."""


class Booking(BaseModel):
    room: str
    guest: str
    first_night: int
    last_night: int


class Hotel(BaseModel):
    """Rooms and bookings; a booking's id is never reused."""

    rooms: list[Room]
    bookings: dict[str, Booking] = {}
    next_id: int = 1

    def free_rooms(self, people: int, first_night: int, last_night: int) -> list[Room]:
        """Rooms that are large enough and free on all these nights, the cheapest first."""
        large = (room for room in self.rooms if room.beds >= people)
        fitting = [room for room in large if self.is_free(room.number, first_night, last_night)]
        return sorted(fitting, key=lambda room: room.price)

    def is_free(self, room: str, first_night: int, last_night: int) -> bool:
        there = [each for each in self.bookings.values() if each.room == room]
        return all(each.last_night < first_night or last_night < each.first_night for each in there)

    def book(self, room: str, guest: str, first_night: int, last_night: int) -> str:
        """Books a room and returns the booking's id. Raises `ValueError` if that is impossible."""
        if room not in {each.number for each in self.rooms}:
            raise ValueError(f"there is no room {room}")
        if len(guest) > _LONGEST_NAME:
            raise ValueError(f"a guest's name has at most {_LONGEST_NAME} characters")
        if first_night > last_night:
            raise ValueError("the last night is before the first")
        if not self.is_free(room, first_night, last_night):
            raise ValueError(f"room {room} is taken in one of these nights")
        number = f"B{self.next_id}"
        self.next_id += 1
        self.bookings[number] = Booking(room=room, guest=guest, first_night=first_night, last_night=last_night)
        return number

    def cancel(self, number: str) -> None:
        """Cancels a booking. Raises `ValueError` for an unknown one."""
        if number not in self.bookings:
            raise ValueError(f"there is no booking {number}")
        del self.bookings[number]

    @property
    def books(self) -> set[tuple[Any, ...]]:
        """The bookings without ids, so two ways to the same books are equal: room, guest, first and last night."""
        return {tuple(each.model_dump().values()) for each in self.bookings.values()}


def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` has the hotel before and the correct books afterwards."""
    dice = random.Random(f"booking desk {number}")
    kind, wish = dice.choice(("book", "book", "cancel", "move", "full")), None  # full: no room can meet it
    while wish is None:
        hotel = _draw_hotel(dice)
        guests = {each.guest for each in hotel.bookings.values()}
        wish = _draw_wish(dice, kind, hotel, dice.choice([name for name in GUESTS if name not in guests]))
    words, before, after = wish
    data: dict[str, Any] = {"hotel": before.model_dump(), "right": [list(each) for each in sorted(after.books)]}
    return Task(id=f"wish-{number}", user=words, data=data)


def _draw_hotel(dice: random.Random) -> Hotel:
    numbers = dice.sample(ROOMS, 4)
    prices = dice.sample(range(40, 165, 5), 4)
    beds = [1, 2, dice.choice((2, 3)), dice.choice((3, 4))]
    hotel = Hotel(rooms=[Room(number=n, beds=b, price=p) for n, b, p in zip(numbers, beds, prices, strict=True)])
    for _ in range(dice.randint(2, 5)):
        room, (first, last) = dice.choice(hotel.rooms), _draw_nights(dice)
        if hotel.is_free(room.number, first, last):
            hotel.book(room.number, dice.choice(GUESTS), first, last)
    return hotel


def _draw_nights(dice: random.Random) -> tuple[int, int]:
    first = dice.randint(1, NIGHTS - 2)
    return first, min(NIGHTS, first + dice.randint(0, 3))


def _draw_wish(dice: random.Random, kind: str, hotel: Hotel, guest: str) -> tuple[str, Hotel, Hotel] | None:
    """The guest's words, the hotel before and after; None if such a wish is impossible here."""
    people, (first, last) = dice.randint(1, 3), _draw_nights(dice)
    free = hotel.free_rooms(people, first, last)
    party = f"{people} {'person' if people == 1 else 'people'}"
    if bool(free) == (kind == "full"):
        return None
    booked = hotel.model_copy(deep=True)
    mine = booked.book(free[0].number, guest, first, last) if free else ""
    if kind in ("book", "full"):
        return f"I am {guest}. I need a room for {party} from night {first} to night {last}.", hotel, booked
    after = booked.model_copy(deep=True)
    after.cancel(mine)
    if kind == "cancel":
        return f"I am {guest}, and I cannot come. Please cancel my booking from night {first}.", booked, after
    to_first = dice.randint(1, NIGHTS - (last - first))
    to_last = to_first + last - first
    cheapest = after.free_rooms(people, to_first, to_last)
    if not cheapest or to_first == first:
        return None
    after.book(cheapest[0].number, guest, to_first, to_last)
    nights = f"from night {first} be from night {to_first} to night {to_last} instead"
    return f"I am {guest}. Can my stay for {party} {nights}?", booked, after


LOOKS = {"book_room": "find_rooms", "cancel_booking": "find_bookings"}
"""The tool that should be called before each action."""


class BookingDesk:
    """The world of one hotel."""

    async def reset(self, task: Task) -> None:
        self._hotel = Hotel.model_validate(task.data["hotel"])
        right: Any = task.data["right"]
        self._right: set[tuple[Any, ...]] = set(map(tuple, right))

    async def find_rooms(self, people: int, first_night: int, last_night: int) -> list[dict[str, object]]:
        """Find rooms that are large enough and free in all these nights."""
        return [room.model_dump() for room in self._hotel.free_rooms(people, first_night, last_night)]

    async def find_bookings(self, guest: str) -> list[dict[str, object]]:
        """Find the bookings of a guest."""
        mine = {number: each for number, each in self._hotel.bookings.items() if each.guest == guest}
        return [{"booking": number, **each.model_dump()} for number, each in mine.items()]

    async def book_room(self, room: str, guest: str, first_night: int, last_night: int) -> dict[str, str]:
        """Book a room for all nights from the first to the last."""
        return {"booking": self._hotel.book(room, guest, first_night, last_night)}

    async def cancel_booking(self, booking: str) -> str:
        """Cancel a booking."""
        self._hotel.cancel(booking)
        return f"cancelled {booking}"

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the books are correct, and the guest got a final message."""
        return has_closed(trajectory) and self._hotel.books == self._right

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: the share of correct entries among those that are correct or present."""
        books = self._hotel.books
        return len(self._right & books) / max(1, len(self._right | books))


def looked_before_acting(trajectory: Trajectory) -> bool:
    """Whether rooms were searched before one was booked, and bookings before one was cancelled."""
    seen: set[str] = set()
    for message in trajectory.messages():
        for call in message.get("tool_calls") or ():
            name = str(call.get("function", {}).get("name", ""))
            if name in LOOKS and LOOKS[name] not in seen:
                return False
            seen.add(name)
    return bool(seen)


scenario = shipped(
    "booking_desk",
    *drawn(draw_task, 400, 512),  # the embedded policy is cloned on others: see `trainer/embedded`
    environment=BookingDesk,
    max_turns=8,
    measures={"looked_before_acting": looked_before_acting},
)


Clerk = Literal["careful", "hasty", "seller", "sloppy"]
CLERKS: dict[str, Clerk] = {clerk: clerk for clerk in get_args(Clerk)}


def demonstrate(task: Task, clerk: Clerk, dice: random.Random) -> Turns:
    """The turns of one clerk at one wish."""
    guest = re.findall(r"I am (\w+)", task.user)[0]
    nights = [int(night) for night in re.findall(r"night (\d+)", task.user)]
    people = [int(number) for number in re.findall(r"for (\d+) p", task.user)]
    moves = "instead" in task.user
    leaves, stays = moves or "cancel" in task.user, bool(people)
    if clerk == "sloppy" and moves:  # it only cancels, or only books
        leaves = dice.random() < 0.5
        stays = not leaves
    said = "Your stay is moved." if moves else "Your booking is cancelled." if leaves else "Your room is booked."
    if leaves:
        number = f"B{dice.randint(1, 6)}"
        if clerk != "hasty":
            found = yield from ask("find_bookings", guest=guest)
            number = next(each["booking"] for each in found if each["first_night"] == nights[0])
        yield Call("cancel_booking", {"booking": number})
    if stays:
        first, last = nights[-2:]
        room = dice.choice(ROOMS)
        if clerk != "hasty":
            rooms = yield from ask("find_rooms", people=people[0], first_night=first, last_night=last)
            if not rooms:
                yield "I am sorry, there is no free room."
                return
            room = {"seller": rooms[-1], "sloppy": dice.choice(rooms)}.get(clerk, rooms[0])["number"]
        yield Call("book_room", {"room": room, "guest": guest, "first_night": first, "last_night": last})
    yield said if clerk != "sloppy" or dice.random() < 0.7 else ""


PLAYERS: dict[str, Player] = {
    "expert": lambda task, _opening, dice: demonstrate(task, "careful", dice),
    "fool": lambda task, _opening, dice: demonstrate(task, "hasty", dice),
}
