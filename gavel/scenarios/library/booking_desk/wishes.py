"""The guests' wishes, and what the books must be afterwards. All of it follows from the number of the task."""

import random
from functools import cache

from pydantic import JsonValue

from gavel.scenarios.library.booking_desk.hotel import Booking, Hotel, Room
from gavel.scenarios.task import Task

GUESTS = ("Ada", "Bruno", "Chen", "Dora", "Emil", "Farah", "Goran", "Hanna", "Ivo", "Jana", "Kofi", "Lena")
NIGHTS = 14
_KINDS = ("book", "book", "cancel", "move", "full")
"""`full`: a wish that no room can meet."""


@cache
def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` has the hotel before and the books that are right after it."""
    dice = random.Random(f"booking desk {number}")
    kind = dice.choice(_KINDS)
    while True:
        hotel = _hotel(dice)
        guest = dice.choice([name for name in GUESTS if name not in {each.guest for each in hotel.bookings.values()}])
        drawn = _wish(dice, kind, hotel, guest)
        if drawn is not None:
            text, before, after = drawn
            data: dict[str, JsonValue] = {
                "hotel": before.model_dump(),
                "right": [list(each) for each in sorted(after.books)],
            }
            return Task(id=f"wish-{number}", user=text, data=data)


def _hotel(dice: random.Random) -> Hotel:
    numbers = dice.sample([f"{floor}0{door}" for floor in (1, 2, 3) for door in (1, 2, 3, 4)], 4)
    prices = dice.sample(range(40, 165, 5), 4)
    beds = [1, 2, dice.choice((2, 3)), dice.choice((3, 4))]
    hotel = Hotel(rooms=[Room(number=n, beds=b, price=p) for n, b, p in zip(numbers, beds, prices, strict=True)])
    for _ in range(dice.randint(2, 5)):
        room, (first, last) = dice.choice(hotel.rooms), _nights(dice)
        if hotel.is_free(room.number, first, last):
            hotel.book(Booking(room=room.number, guest=dice.choice(GUESTS), first_night=first, last_night=last))
    return hotel


def _nights(dice: random.Random) -> tuple[int, int]:
    first = dice.randint(1, NIGHTS - 2)
    return first, min(NIGHTS, first + dice.randint(0, 3))


def _wish(dice: random.Random, kind: str, hotel: Hotel, guest: str) -> tuple[str, Hotel, Hotel] | None:
    """The guest's words, the hotel before and after; None where such a wish cannot be made here."""
    people, (first, last) = dice.randint(1, 3), _nights(dice)
    free = hotel.free_rooms(people, first, last)
    party = f"{people} {'person' if people == 1 else 'people'}"
    if kind in ("book", "full"):
        if bool(free) != (kind == "book"):
            return None
        after = hotel.model_copy(deep=True)
        if free:
            after.book(Booking(room=free[0].number, guest=guest, first_night=first, last_night=last))
        text = f"I am {guest}. I need a room for {party} from night {first} to night {last}."
        return text, hotel, after
    if not free:
        return None
    before = hotel.model_copy(deep=True)
    mine = before.book(Booking(room=free[0].number, guest=guest, first_night=first, last_night=last))
    after = before.model_copy(deep=True)
    after.cancel(mine)
    if kind == "cancel":
        return f"I am {guest}, and I cannot come. Please cancel my booking from night {first}.", before, after
    to_first = dice.randint(1, NIGHTS - (last - first))
    to_last = to_first + last - first
    cheapest = after.free_rooms(people, to_first, to_last)
    if not cheapest or to_first == first:
        return None
    after.book(Booking(room=cheapest[0].number, guest=guest, first_night=to_first, last_night=to_last))
    text = (
        f"I am {guest}. Can my stay for {party} from night {first} be from night {to_first} to night {to_last} instead?"
    )
    return text, before, after
