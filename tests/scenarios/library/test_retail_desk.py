from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gavel.scenarios.library._retail_shop import Case, Shop, draw_task, plain
from gavel.scenarios.library.retail_desk import GIVES_UP, GOODBYE, PLAYERS, Customer, scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scripted_agent import Call, Player, Turns, played_by
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


def case_of(task: Task) -> Case:
    return Case.model_validate(task.data)


def first_where(fits: Callable[[Case], bool]) -> Task:
    return next(task for task in map(draw_task, range(400)) if fits(case_of(task)))


def tools_of(case: Case) -> list[str]:
    return [change.tool for change in case.right]


async def expert_but(task: Task, changed: Callable[[Call], list[Call]]) -> Trajectory:
    """An expert some of whose calls are others, or left out."""

    def play(task: Task, opening: str, dice: Any) -> Turns:
        turns = PLAYERS["expert"](task, opening, dice)
        turn = next(turns)
        while True:
            said = "null"
            if isinstance(turn, Call):
                for call in changed(turn):
                    said = yield call
            else:
                said = yield turn
            try:
                turn = turns.send(said)
            except StopIteration:
                return

    player: Player = play
    return await rollout(played_by(player, task), scenario, task)


def test_refusals_are_a_minority_and_every_kind_of_change_is_there():
    cases = [case_of(draw_task(number)) for number in range(300)]
    tools = Counter(tool for case in cases for tool in tools_of(case))
    assert 0.1 < sum(tools_of(case) == ["decline"] for case in cases) / len(cases) < 0.25
    assert set(tools) == {"return_item", "exchange_item", "cancel_order", "change_address", "decline"}
    reasons = {change.reason for case in cases for change in case.right if change.tool == "decline"}
    assert reasons == {"too_late", "opened", "out_of_stock"}
    assert all(not case.after.same_as(case.shop) for case in cases), "doing nothing is never right"


@pytest.mark.parametrize(
    ("tool", "left_out"),
    [
        ("return_item", "read_policy"),
        ("return_item", "get_order"),
        ("exchange_item", "read_policy"),
        ("exchange_item", "find_stock"),
        ("cancel_order", "read_policy"),
        ("decline", "read_policy"),
        ("decline", "get_order"),
    ],
)
async def test_the_right_change_without_a_look_at_what_it_depends_on_is_no_success(tool: str, left_out: str):
    task = first_where(lambda case: tools_of(case) == [tool])
    done = case_of(task).right[0]
    customer = case_of(task).customer

    def play(task: Task, opening: str, dice: Any) -> Turns:
        known = {"customer_id": customer.customer_id, "order_id": done.order_id, "item": case_of(task).wishes[0].item}
        yield Call("find_customer", {"name": customer.name, "postcode": customer.postcode})
        mine = case_of(task).shop.orders_of(customer.customer_id)
        if left_out != "get_order":
            for order in mine:
                yield Call("get_order", {"order_id": order.order_id})
        if left_out != "read_policy":
            for topic in ("returns", "exchanges", "cancellations", "addresses"):
                yield Call("read_policy", {"topic": topic})
        if done.tool == "exchange_item":
            yield "Which colour would you like?"
        if left_out != "find_stock":
            yield Call("find_stock", {"item": known["item"]})
        arguments = {
            "return_item": {"refund_to": done.refund_to},
            "exchange_item": {"colour": done.colour},
            "decline": {"request": done.request, "reason": done.reason},
        }.get(tool, {})
        names = {
            "decline": ("customer_id", "item"),
            "cancel_order": ("order_id",),
        }.get(tool, ("order_id", "item"))
        yield Call(tool, {**{name: known[name] for name in names}, **arguments})
        yield "It is done."

    episode = await rollout(played_by(play, task), scenario, task)
    assert episode.metrics["tool_errors"] == 0
    assert episode.metrics["environment_reward"] == 1, "the records are right"
    assert episode.metrics["success"] == 0
    assert (await rollout(played_by(PLAYERS["expert"], task), scenario, task)).metrics["success"] == 1


async def test_a_colour_that_the_customer_did_not_name_is_a_guess():
    task = first_where(lambda case: tools_of(case) == ["exchange_item"])

    def play(task: Task, opening: str, dice: Any) -> Turns:
        turns = PLAYERS["expert"](task, opening, dice)
        turn = next(turns)
        while True:
            asks_colour = isinstance(turn, str) and "colour" in turn
            if asks_colour:  # it knows what it should ask
                wish = case_of(task).wishes[0]
                said = f"I would like the {wish.item} in {wish.colours[0]}, or in {wish.colours[1]} if there is none."
            else:
                said = yield turn
            try:
                turn = turns.send(said)
            except StopIteration:
                return

    episode = await rollout(played_by(play, task), scenario, task)
    assert (episode.metrics["environment_reward"], episode.metrics["success"]) == (1, 0)


async def test_who_does_too_much_or_half_of_it_fails():
    task = first_where(lambda case: len(case.wishes) == 2 and set(tools_of(case)) == {"return_item", "cancel_order"})
    half = await expert_but(task, lambda call: [] if call.name == "cancel_order" else [call])
    assert half.metrics["success"] == 0
    assert 0 < half.metrics["environment_reward"] < 1
    wrong = await expert_but(
        task,
        lambda call: [Call(call.name, {**call.arguments, "refund_to": "store_credit"})] if "refund_to" in call.arguments
        and call.arguments["refund_to"] == "card" else [call],
    )  # fmt: skip
    right = case_of(task).right
    assert wrong.metrics["success"] == all(change.refund_to == "store_credit" for change in right if change.order_id)


async def test_orders_and_customers_that_were_not_found_cannot_be_reached():
    task = first_where(lambda case: tools_of(case) == ["return_item"])
    case = case_of(task)
    order, customer = case.right[0].order_id, case.customer

    def play(task: Task, opening: str, dice: Any) -> Turns:
        yield Call("find_customer", {"name": customer.name, "postcode": "00000"})
        yield Call("get_order", {"order_id": order})
        yield Call("return_item", {"order_id": order, "item": case.wishes[0].item, "refund_to": "card"})
        about = {"item": case.wishes[0].item, "request": "return", "reason": "too_late"}
        yield Call("decline", {"customer_id": customer.customer_id, **about})
        yield "Goodbye."

    episode = await rollout(played_by(play, task), scenario, task)
    assert episode.metrics["tool_errors"] == 4
    answers = [message["content"] for message in episode.messages() if message["role"] == "tool"]
    assert "no customer has this name and postcode" in answers[0]
    assert all("call find_customer first" in answer for answer in answers[1:])


def test_the_customer_answers_what_it_is_asked_and_goes_at_the_end():
    case = case_of(first_where(lambda case: tools_of(case) == ["exchange_item"] and not case.says_who))
    wish, who = case.wishes[0], case.customer
    customer = Customer(case)
    said, goes = customer.answer("Who are you, please? I need name and postcode.", [wish], is_done=False)
    assert (said, goes) == (f"I am {who.name}, postcode {who.postcode}.", False)
    said, goes = customer.answer("Which colour would you prefer?", [wish], is_done=False)
    assert all(colour in said for colour in wish.colours)
    assert customer.answer("Shall I go ahead?", [wish], is_done=False) == ("Yes, please.", False)
    assert customer.answer("Is there anything else?", [], is_done=True) == (GOODBYE, True)
    assert customer.answer("I have exchanged it.", [], is_done=True) == (GOODBYE, True)
    waiting = Customer(case)
    ends = [waiting.answer("One moment.", [wish], is_done=False) for _ in range(4)]
    assert [goes for _, goes in ends] == [False, False, False, True]
    assert ends[-1][0] == GIVES_UP


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Please provide your details.", "I am "),
        ("Could you confirm your full name and ZIP code, so that I can find your account?", "I am "),
        ("May I have your order number?", "I do not have that at hand. I want to send the "),
        ("What is your phone number?", "I do not have that at hand."),
        ("Sure! Which item is it about?", "I want to send the "),
        ("I will refund 50 euros to your card. Is that all right?", "Yes, please."),
        ("Shall I refund it?", "Yes, please."),
        ("Why?", "I do not know that."),
        ("How is the weather?", "I do not know that."),
        ("", "I am still waiting"),
        ("I will look into it.", "I am still waiting"),
    ],
)
def test_a_customer_says_yes_only_to_what_can_be_answered_so(question: str, answer: str):
    case = case_of(first_where(lambda case: tools_of(case) == ["return_item"]))
    said, goes = Customer(case).answer(question, case.wishes, is_done=False)
    assert said.startswith(answer)
    assert not goes


def test_addresses_agree_however_they_are_spelt():
    assert plain(" 12,  Mill Lane. ") == plain("12 mill lane")
    shop: Shop = case_of(draw_task(0)).shop
    other = shop.model_copy(deep=True)
    other.orders[0].address = f" {other.orders[0].address.upper()}. "
    assert shop.same_as(other)
    other.orders[0].address = "elsewhere"
    assert not shop.same_as(other)
