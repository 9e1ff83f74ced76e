from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gavel.scenarios.library._airline import Airline, Case, FareRule, draw_task, refund_of
from gavel.scenarios.library.airline_desk import PLAYERS, scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scripted_agent import Call, Turns, played_by
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


def case_of(task: Task) -> Case:
    return Case.model_validate(task.data)


def first_where(tool: str) -> Task:
    return next(task for task in map(draw_task, range(200)) if case_of(task).right.tool == tool)


async def expert_but(task: Task, changed: Callable[[Call], list[Call]]) -> Trajectory:
    """An expert some of whose calls are others, or made twice."""

    def play(task: Task, opening: str, dice: Any) -> Turns:
        turns = PLAYERS["expert"](task, opening, dice)
        turn: Call | str = next(turns)
        while True:
            said = ""
            for each in changed(turn) if isinstance(turn, Call) else [turn]:
                said = yield each
            try:
                turn = turns.send(said)
            except StopIteration:
                return

    return await rollout(played_by(play, task), scenario, task)


def test_refusals_are_a_minority_for_every_reason_and_doing_nothing_is_never_right():
    cases = [case_of(draw_task(number)) for number in range(200)]
    tools = Counter(case.right.tool for case in cases)
    assert 0.1 < tools["decline"] / len(cases) < 0.3
    assert min(tools.values()) > 20
    reasons = Counter(case.right.reason for case in cases if case.right.tool == "decline")
    assert max(reasons.values()) < len(cases) / 6
    assert len(reasons) >= 4
    assert all(not case.after.same_as(case.airline) for case in cases)


RULE = FareRule(change=True, change_fee=0, change_days=0, refund_percent=50, refund_fee=10, refund_days=3)
PRICES: Any = {"light": 99, "classic": 120, "flex": 160}


@pytest.mark.parametrize(
    ("day", "is_cancelled", "rule", "refund"),
    [
        (5, False, {}, 39),  # half of 99, rounded down, minus 10
        (3, False, {}, 39),
        (2, False, {}, 0),
        (2, True, {}, 99),
        (5, False, {"refund_percent": 0}, 0),
        (5, False, {"refund_percent": 100, "refund_fee": 0}, 99),
    ],
)
def test_a_refund_follows_from_fare_day_and_airline(day: int, is_cancelled: bool, rule: dict[str, int], refund: int):
    assert refund_of(99, day, RULE.model_copy(update=rule), is_cancelled=is_cancelled) == refund


@pytest.mark.parametrize(
    ("tool", "argument"), [("change_flight", "charge"), ("cancel_booking", "refund"), ("decline", "reason")]
)
async def test_an_amount_or_reason_that_is_a_little_wrong_fails(tool: str, argument: str):
    task = first_where(tool)

    def wrong(call: Call) -> list[Call]:
        if call.name != tool:
            return [call]
        given: Any = call.arguments[argument]
        other = ("too_late" if given != "too_late" else "no_flight") if tool == "decline" else abs(given - 1)
        return [Call(tool, {**call.arguments, argument: other})]

    episode = await expert_but(task, wrong)
    assert episode.metrics["tool_errors"] == 0
    assert (episode.metrics["success"], episode.metrics["environment_reward"]) == (0, 0.5)


@pytest.mark.parametrize(
    ("tool", "left_out"),
    [
        ("change_flight", "read_fare_rule"),
        ("cancel_booking", "read_fare_rule"),
        ("decline", "read_fare_rule"),
        ("change_flight", "find_bookings"),
    ],
)
async def test_the_right_change_without_a_look_is_no_success(tool: str, left_out: str):
    task = next(
        task
        for task in map(draw_task, range(300))
        if case_of(task).right.tool == tool and not any(flight.is_cancelled for flight in case_of(task).airline.flights)
    )
    # What it leaves out it knows all the same.
    seen = await rollout(played_by(PLAYERS["expert"], task), scenario, task)
    calls = [
        (call["function"]["name"], call["function"]["arguments"], answer["content"]) for call, answer in _calls(seen)
    ]
    known = next(answer for name, _, answer in calls if name == left_out)

    def play(task: Task, opening: str, dice: Any) -> Turns:
        turns = PLAYERS["expert"](task, opening, dice)
        turn = next(turns)
        while True:
            said = known if isinstance(turn, Call) and turn.name == left_out else (yield turn)
            try:
                turn = turns.send(said)
            except StopIteration:
                return

    episode = await rollout(played_by(play, task), scenario, task)
    assert seen.metrics["success"] == 1
    assert (episode.metrics["success"], episode.metrics["environment_reward"]) == (0, 1)


def _calls(episode: Trajectory) -> list[tuple[Any, Any]]:
    messages = episode.messages()
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return list(zip(calls, [message for message in messages if message["role"] == "tool"], strict=True))


async def test_who_acts_twice_fails():
    for tool in ("book_flight", "cancel_booking", "decline"):
        episode = await expert_but(first_where(tool), lambda call, tool=tool: [call] * (1 + (call.name == tool)))
        assert episode.metrics["success"] == (0 if tool == "book_flight" else 1)
        assert episode.metrics["tool_errors"] == (0 if tool == "book_flight" else 1)


def test_seats_are_kept_in_count():
    airline: Airline = case_of(first_where("book_flight")).airline
    flight = next(each for each in airline.flights if each.seats == 2)
    before = airline.model_copy(deep=True)
    first, second = (airline.book(flight.flight, name, "flex") for name in ("Ada Abel", "Chen Ito"))
    with pytest.raises(ValueError, match="is full"):
        airline.book(flight.flight, "Ivo Duran", "light")
    for made in (first, second):
        airline.cancel(made.booking, 0)
    assert airline.flight(flight.flight).seats == 2
    assert not airline.same_as(before)  # what was cancelled is on record
