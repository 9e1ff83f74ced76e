"""The airline and the retail desk: what they ask for, and that the right change alone is no success."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gavel.scenarios.library import _airline, _retail_shop, airline_desk, retail_desk
from gavel.scenarios.library._airline import FareRule, refund_of
from gavel.scenarios.library.retail_desk import Customer
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Call, Player, Turns, played_by
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


def flight(task: Task) -> _airline.Case:
    return _airline.Case.model_validate(task.data)


def order(task: Task) -> _retail_shop.Case:
    return _retail_shop.Case.model_validate(task.data)


def changes(task: Task) -> list[str]:
    """The tools of the right end, of either desk."""
    return [flight(task).right.tool] if "airline" in task.data else [change.tool for change in order(task).right]


def first_where(draw: Callable[[int], Task], fits: Callable[[Task], bool]) -> Task:
    return next(task for task in map(draw, range(400)) if fits(task))


def expert_but(
    expert: Player,
    does: Callable[[Call], int] = lambda call: 1,
    knows: Callable[[Call | str], str | None] = lambda _: None,
) -> Player:
    """An expert that makes each call as often as `does` says, and does not ask for what it `knows`."""

    def play(task: Task, opening: str, dice: Any) -> Turns:
        turns = expert(task, opening, dice)
        turn: Call | str = next(turns)
        while True:
            said = knows(turn) or "null"
            if said == "null":
                for _ in range(does(turn) if isinstance(turn, Call) else 1):
                    said = yield turn
            try:
                turn = turns.send(said)
            except StopIteration:
                return

    return play


async def played(player: Player, scenario: Scenario, task: Task) -> Trajectory:
    return await rollout(played_by(player, task), scenario, task)


def test_every_kind_of_change_is_there_and_doing_nothing_is_never_right():
    flights = [flight(_airline.draw_task(number)) for number in range(200)]
    tools = Counter(case.right.tool for case in flights)
    assert 0.1 < tools["decline"] / len(flights) < 0.3
    assert min(tools.values()) > 20
    reasons = Counter(case.right.reason for case in flights if case.right.tool == "decline")
    assert max(reasons.values()) < len(flights) / 6
    assert len(reasons) >= 4
    assert all(not case.after.same_as(case.airline) for case in flights)
    orders = [order(_retail_shop.draw_task(number)) for number in range(300)]
    assert 0.1 < sum([change.tool for change in case.right] == ["decline"] for case in orders) / len(orders) < 0.25
    made = {change.tool: change.reason for case in orders for change in case.right}
    assert set(made) == {"return_item", "exchange_item", "cancel_order", "change_address", "decline"}
    assert all(not case.after.same_as(case.shop) for case in orders)


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
    scenario, draw, expert = {
        "airline": (airline_desk.scenario, _airline.draw_task, airline_desk.PLAYERS["expert"]),
        "retail": (retail_desk.scenario, _retail_shop.draw_task, retail_desk.PLAYERS["expert"]),
    }[desk]

    def fits(task: Task) -> bool:
        flights = flight(task).airline.flights if desk == "airline" else ()
        return changes(task) == [tool] and not any(each.is_cancelled for each in flights)

    task = first_where(draw, fits)
    answers: dict[str, str] = {}

    def heard(task: Task, opening: str, dice: Any) -> Turns:
        turns = expert(task, opening, dice)
        turn: Call | str = next(turns)
        while True:
            said = yield turn
            answers[str(turn)] = said
            try:
                turn = turns.send(said)
            except StopIteration:
                return

    def knows(turn: Call | str) -> str | None:
        return answers[str(turn)] if isinstance(turn, Call) and turn.name == left_out else None

    seen = await played(heard, scenario, task)
    blind = await played(expert_but(expert, knows=knows), scenario, task)
    assert seen.metrics["success"] == 1
    assert (blind.metrics["environment_reward"], blind.metrics["success"]) == (1, 0), "the records are right"


RULE = FareRule(change=True, change_fee=0, change_days=0, refund_percent=50, refund_fee=10, refund_days=3)


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
    assert refund_of(99, day, RULE.model_copy(update=rule), is_cancelled=is_cancelled) == refund


@pytest.mark.parametrize(("tool", "success"), [("book_flight", 0), ("cancel_booking", 1), ("decline", 1)])
async def test_who_books_twice_fails_and_who_ends_twice_is_told(tool: str, success: int):
    task = first_where(_airline.draw_task, lambda task: changes(task) == [tool])
    twice = expert_but(airline_desk.PLAYERS["expert"], lambda call: 1 + (call.name == tool))
    episode = await played(twice, airline_desk.scenario, task)
    assert (episode.metrics["success"], episode.metrics["tool_errors"]) == (success, success)


def test_seats_are_kept_in_count():
    airline = flight(first_where(_airline.draw_task, lambda task: changes(task) == ["book_flight"])).airline
    chosen = next(each for each in airline.flights if each.seats == 2)
    before = airline.model_copy(deep=True)
    first, second = (airline.book(chosen.flight, name, "flex") for name in ("Ada Abel", "Chen Ito"))
    with pytest.raises(ValueError, match="is full"):
        airline.book(chosen.flight, "Ivo Duran", "light")
    for made in (first, second):
        airline.cancel(made.booking, 0)
    assert airline.flight(chosen.flight).seats == 2
    assert not airline.same_as(before)  # what was cancelled is on record


async def test_a_colour_that_the_customer_did_not_name_is_a_guess():
    task = first_where(_retail_shop.draw_task, lambda task: changes(task) == ["exchange_item"])
    wish = order(task).wishes[0]
    named = f"I would like the {wish.item} in {wish.colours[0]}, or in {wish.colours[1]} if there is none."
    guesser = expert_but(
        retail_desk.PLAYERS["expert"], knows=lambda turn: named if isinstance(turn, str) and "colour" in turn else None
    )
    episode = await played(guesser, retail_desk.scenario, task)
    assert (episode.metrics["environment_reward"], episode.metrics["success"]) == (1, 0)


async def test_orders_and_customers_that_were_not_found_cannot_be_reached():
    task = first_where(_retail_shop.draw_task, lambda task: changes(task) == ["return_item"])
    case = order(task)

    def play(task: Task, opening: str, dice: Any) -> Turns:
        of = {"order_id": case.right[0].order_id}
        about = {"item": case.wishes[0].item, "request": "return", "reason": "too_late"}
        yield Call("find_customer", {"name": case.customer.name, "postcode": "00000"})
        yield Call("get_order", of)
        yield Call("return_item", {**of, "item": case.wishes[0].item, "refund_to": "card"})
        yield Call("decline", {"customer_id": case.customer.customer_id, **about})
        yield "Goodbye."

    episode = await played(play, retail_desk.scenario, task)
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
    case = order(first_where(_retail_shop.draw_task, lambda task: changes(task) == ["return_item"]))
    said, goes = Customer(case).answer(question, case.wishes, is_done=False)
    assert said.startswith(answer)
    assert not goes
