"""The airline, the retail and the booking desk: what they ask for, and that the right change alone is no success."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library import airline_desk, booking_desk, retail_desk
from gavel.scenarios.library._shared import playing
from gavel.scenarios.library.airline_desk import FareRule, refund_of
from gavel.scenarios.library.booking_desk import CLERKS, Hotel, Room, demonstrate, looked_before_acting
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scripted_agent import Call, Player, Turns, played_by
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

DESKS = {"airline": airline_desk, "retail": retail_desk}


def case(task: Task) -> Any:
    return (airline_desk if "airline" in task.data else retail_desk).Case.model_validate(task.data)


def right(task: Task) -> list[Call]:
    """The right changes, of either desk."""
    found = case(task).right
    return [found] if isinstance(found, Call) else found


def first(desk: str, tool: str, fits: Callable[[Any], bool] = lambda case: True) -> Task:
    """The first task whose only right change is of this tool."""
    tasks = map(DESKS[desk].draw_task, range(400))
    return next(task for task in tasks if [each.name for each in right(task)] == [tool] and fits(case(task)))


def expert_but(
    desk: str,
    does: Callable[[Call], int] = lambda call: 1,
    knows: Callable[[Call | str], str | None] = lambda turn: None,
    hears: Callable[[Call | str, str], None] = lambda turn, said: None,
) -> Player:
    """An expert that makes each call as often as `does` says, and does not ask for what it `knows`."""

    def play(task: Task, opening: str, dice: Any) -> Turns:
        turns = DESKS[desk].PLAYERS["expert"](task, opening, dice)
        turn = next(turns)
        while True:
            if (said := knows(turn)) is None:
                for _ in range(does(turn) if isinstance(turn, Call) else 1):
                    said = yield turn
            hears(turn, said or "null")
            try:
                turn = turns.send(said or "null")
            except StopIteration:
                return

    return play


async def played(player: Player, desk: str, task: Task) -> Trajectory:
    return await rollout(played_by(player, task), DESKS[desk].scenario, task)


def test_every_kind_of_change_is_there():
    tasks = [airline_desk.draw_task(number) for number in range(200)]
    changes = [change for task in tasks for change in right(task)]
    tools = Counter(change.name for change in changes)
    assert 0.1 < tools["decline"] / len(tasks) < 0.3
    assert min(tools.values()) > 20
    reasons = Counter(change.arguments["reason"] for change in changes if change.name == "decline")
    assert max(reasons.values()) < len(tasks) / 6
    assert len(reasons) >= 4
    tasks = [retail_desk.draw_task(number) for number in range(300)]
    assert 0.1 < sum([change.name for change in right(task)] == ["decline"] for task in tasks) / len(tasks) < 0.25
    made = {change.name for task in tasks for change in right(task)}
    assert made == {"return_item", "exchange_item", "cancel_order", "change_address", "decline"}


@pytest.mark.parametrize(
    ("desk", "tool", "left_out"),
    [
        ("airline", "change_flight", "read_fare_rule"),
        ("airline", "decline", "read_fare_rule"),
        ("airline", "change_flight", "find_bookings"),
        ("retail", "return_item", "read_policy"),
        ("retail", "return_item", "get_order"),
        ("retail", "exchange_item", "find_stock"),
        ("retail", "decline", "read_policy"),
    ],
)
async def test_the_right_change_without_a_look_at_what_it_depends_on_is_no_success(desk: str, tool: str, left_out: str):
    task = first(
        desk, tool, lambda case: desk == "retail" or not any(each.is_cancelled for each in case.airline.flights)
    )
    answers: dict[str, str] = {}

    def knows(turn: Call | str) -> str | None:
        return answers[str(turn)] if isinstance(turn, Call) and turn.name == left_out else None

    seen = await played(expert_but(desk, hears=lambda turn, said: answers.update({str(turn): said})), desk, task)
    blind = await played(expert_but(desk, knows=knows), desk, task)
    assert seen.metrics["success"] == 1
    assert (blind.metrics["environment_reward"], blind.metrics["success"]) == (1, 0), "the records are right"


@pytest.mark.parametrize(
    ("day", "is_cancelled", "rule", "refund"),
    [
        (5, False, {}, 39),  # half of 99, rounded down, minus 10
        (3, False, {}, 39),
        (2, False, {}, 0),
        (2, True, {}, 99),
        (5, False, {"refund_percent": 0}, 0),
    ],
)
def test_a_refund_follows_from_fare_day_and_airline(day: int, is_cancelled: bool, rule: dict[str, int], refund: int):
    fare = FareRule(change=True, change_fee=0, change_days=0, refund_percent=50, refund_fee=10, refund_days=3)
    assert refund_of(99, day, fare.model_copy(update=rule), is_cancelled=is_cancelled) == refund


@pytest.mark.parametrize(("tool", "success"), [("book_flight", 0), ("cancel_booking", 1), ("decline", 1)])
async def test_who_books_twice_fails_and_who_ends_twice_is_told(tool: str, success: int):
    twice = expert_but("airline", lambda call: 1 + (call.name == tool))
    episode = await played(twice, "airline", first("airline", tool))
    assert (episode.metrics["success"], episode.metrics["tool_errors"]) == (success, success)


async def test_seats_are_kept_in_count():
    task = first("airline", "book_flight", lambda case: any(each.seats == 2 for each in case.airline.flights))
    desk = airline_desk.AirlineDesk()
    await desk.reset(task)
    chosen = next(each for each in case(task).airline.flights if each.seats == 2)

    async def seats() -> int:
        found = await desk.search_flights(chosen.origin, chosen.destination, chosen.day)
        return sum(int(str(each["seats"])) for each in found if each["flight"] == chosen.flight)

    made = [await desk.book_flight(chosen.flight, name, "flex") for name in ("Ada Abel", "Chen Ito")]
    with pytest.raises(ValueError, match="is full"):
        await desk.book_flight(chosen.flight, "Ivo Duran", "light")
    for each in made:
        await desk.cancel_booking(str(each["booking"]), 0)
    assert await seats() == 2


async def test_a_colour_that_the_customer_did_not_name_is_a_guess():
    task = first("retail", "exchange_item")
    said = case(task).wishes[0].taste
    guesser = expert_but("retail", knows=lambda turn: said if isinstance(turn, str) and "colour" in turn else None)
    episode = await played(guesser, "retail", task)
    assert (episode.metrics["environment_reward"], episode.metrics["success"]) == (1, 0)


async def test_orders_and_customers_that_were_not_found_cannot_be_reached():
    task = first("retail", "return_item")
    (change,), customer = right(task), case(task).customer
    about = {"item": change.arguments["item"], "request": "return", "reason": "too_late"}
    calls = [
        Call("find_customer", {"name": customer.name, "postcode": "00000"}),
        Call("get_order", {"order_id": change.arguments["order_id"]}),
        change,
        Call("decline", {"customer_id": customer.customer_id, **about}),
    ]
    episode = await played(lambda *_: playing([*calls, "Goodbye."]), "retail", task)
    assert episode.metrics["tool_errors"] == 4
    answers = [message["content"] for message in episode.messages() if message["role"] == "tool"]
    assert "no customer has this name and postcode" in answers[0]
    assert all("call find_customer first" in answer for answer in answers[1:])


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Could you confirm your full name and ZIP code, so that I can find your account?", "I am "),
        ("May I have your order number?", "I do not have that at hand. I want to send the "),
        ("What is your phone number?", "I do not have that at hand."),
        ("Sure! Which item is it about?", "I want to send the "),
        ("I will refund 50 euros to your card. Is that all right?", "Yes, please."),
        ("Why?", "I do not know that."),
        ("", "I am still waiting"),
    ],
)
def test_a_customer_says_yes_only_to_what_can_be_answered_so(question: str, answer: str):
    found = case(first("retail", "return_item"))
    said, goes = retail_desk.ScriptedCustomer(found).answer(question, found.wishes, is_done=False)
    assert said.startswith(answer)
    assert not goes


TASKS = [*booking_desk.scenario.tasks("train")[:40], *booking_desk.scenario.tasks("held_out")[:24]]


def clerk(name: str, task: Task, seed: int) -> Any:
    return played_by(lambda task, opening, dice: demonstrate(task, CLERKS[name], random.Random(seed)), task)


async def test_the_stand_in_judge_tells_right_books_from_wrong_ones_without_seeing_them():
    judge = Judge("stand-in", rubric=booking_desk.scenario.rubric, orders=1)
    successes = dict.fromkeys(CLERKS, 0.0)
    for number, task in enumerate(TASKS[::2]):
        attempts = [await rollout(clerk(name, task, number), booking_desk.scenario, task) for name in CLERKS]
        judged = await judge.score(TrajectoryGroup(attempts))
        for name, attempt in zip(CLERKS, judged.trajectories, strict=True):
            successes[name] += attempt.metrics["success"]
            assert looked_before_acting(attempt) == (name != "hasty")
            if judged.judgement is not None and judged.judgement.status != "degenerate":
                assert attempt.reward == 1.0 or name != "careful"
                assert attempt.reward != 1.0 or attempt.metrics["success"]
    assert successes["careful"] == len(TASKS[::2])
    assert 0 < successes["hasty"] < successes["sloppy"] < successes["careful"]


NIGHT = st.integers(1, 9)


@given(st.lists(st.tuples(st.sampled_from("AB"), NIGHT, NIGHT).map(lambda t: (t[0], *sorted(t[1:]))), max_size=12))
def test_no_room_is_ever_booked_twice_for_a_night(wishes: list[tuple[str, int, int]]):
    hotel = Hotel(rooms=[Room(number="A", beds=1, price=1), Room(number="B", beds=2, price=2)])
    taken: set[tuple[str, int]] = set()
    for room, first, last in wishes:
        nights = {(room, night) for night in range(first, last + 1)}
        if nights & taken:
            with pytest.raises(ValueError, match="taken"):
                hotel.book(room, "Ada", first, last)
        else:
            hotel.book(room, "Ada", first, last)
            taken |= nights
