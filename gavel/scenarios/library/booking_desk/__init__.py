"""The booking desk: a guest's wish, a hotel's books that the agent changes, and only one right end state.

Every episode has a hotel of its own. Whether it went well is read from the books, which the judge does not see.
"""

from typing import Any

from gavel.prompts import render
from gavel.scenarios.library.booking_desk.hotel import Booking, Entry, Hotel
from gavel.scenarios.library.booking_desk.wishes import draw_task
from gavel.scenarios.library.drawn_tasks import DrawnTasks
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

TRAIN, HELD_OUT = range(400), range(400, 912)
"""Numbers of the wishes. The embedded policy is cloned on others: see `trainer/embedded`."""

LOOKS = {"book_room": "find_rooms", "cancel_booking": "find_bookings"}
"""What is to be called before each action."""


class BookingDesk:
    """One hotel."""

    async def reset(self, task: Task) -> None:
        self._hotel = Hotel.model_validate(task.data["hotel"])
        right: Any = task.data["right"]
        self._right: set[Entry] = {tuple(entry) for entry in right}

    async def find_rooms(self, people: int, first_night: int, last_night: int) -> list[dict[str, object]]:
        """Find rooms that are large enough and free in all these nights."""
        return [room.model_dump() for room in self._hotel.free_rooms(people, first_night, last_night)]

    async def find_bookings(self, guest: str) -> list[dict[str, object]]:
        """Find the bookings of a guest."""
        mine = {number: each for number, each in self._hotel.bookings.items() if each.guest == guest}
        return [{"booking": number, **each.model_dump()} for number, each in mine.items()]

    async def book_room(self, room: str, guest: str, first_night: int, last_night: int) -> dict[str, str]:
        """Book a room for all nights from the first to the last."""
        booking = Booking(room=room, guest=guest, first_night=first_night, last_night=last_night)
        return {"booking": self._hotel.book(booking)}

    async def cancel_booking(self, booking: str) -> str:
        """Cancel a booking."""
        self._hotel.cancel(booking)
        return f"cancelled {booking}"

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the books are as they must be, and the guest was told something."""
        last = trajectory.messages()[-1]
        told = last["role"] == "assistant" and bool((last.get("content") or "").strip())
        return trajectory.status == "finished" and told and self._hotel.books == self._right

    def reward(self, trajectory: Trajectory) -> float:
        """What somebody might write by hand: the share of right entries among those that are right or there."""
        books = self._hotel.books
        return len(self._right & books) / max(1, len(self._right | books))


def looked_before_acting(trajectory: Trajectory) -> bool:
    """Whether rooms were looked for before one was booked, and bookings before one was cancelled."""
    seen: set[str] = set()
    for message in trajectory.messages():
        for call in message.get("tool_calls") or ():
            name = str(call.get("function", {}).get("name", ""))
            if name in LOOKS and LOOKS[name] not in seen:
                return False
            seen.add(name)
    return bool(seen)


scenario = Scenario(
    name="booking_desk",
    system=render("scenarios/booking_desk_system.j2").strip(),
    environment=BookingDesk,
    tasks=DrawnTasks(TRAIN, draw_task),
    held_out=DrawnTasks(HELD_OUT, draw_task),
    max_turns=8,
    rubric=render("scenarios/booking_desk_rubric.j2").strip(),
    measures={"looked_before_acting": looked_before_acting},
)
