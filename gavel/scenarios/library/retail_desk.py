"""The retail desk: identify the customer, look up orders and today's policies, then change the records.

Every episode has its own shop and policies. The customer is scripted and answers questions; GAVEL_USER_MODEL names a
language model to play it, from `goal`. Success is the one correct end state, reached after looking up the facts.

The customer says who it is, which colour it likes and where it lives, when it is asked. It answers by keywords,
deterministically, and leaves once its wishes have been handled, rightly or wrongly, or its patience ends.
"""

import json
import os
import random
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gavel.prompts import render
from gavel.scenarios.episode import Episode
from gavel.scenarios.library._retail_shop import (
    MOVED,
    TOPICS,
    Case,
    Change,
    Order,
    Reason,
    RefundTo,
    Request,
    Topic,
    Wish,
    draw_task,
    plain,
    who_of,
    words_of,
)
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_IDENTITY = re.compile(r"\b(names?|postcodes?|postal|zip|identi\w*|verify|who|details|account)\b", re.IGNORECASE)
_COLOUR = re.compile(r"\b(colou?rs?|prefer\w*|alternatives?|stock|available)\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(address\w*|where|street)\b", re.IGNORECASE)
_WISH = re.compile(r"\b(which|what|item|order|help)\b", re.IGNORECASE)
_UNKNOWN = re.compile(r"\b(numbers?|ids?|e-?mail|phone)\b", re.IGNORECASE)
_YES_OR_NO = re.compile(
    r"(^|[.!,;:?]\s*)(so )?(shall|should|do|does|is|are|was|would|may|can|could|will|have|did)\b"
    r"|\b(confirm|proceed|go ahead|okay|ok|correct|right|agree)\b",
    re.IGNORECASE,
)
_MORE = re.compile(r"\banything (else|more)\b", re.IGNORECASE)
GOODBYE, GIVES_UP = "Thank you. Goodbye.", "I have waited long enough. Goodbye."
_PATIENCE = 4
"""Messages without progress after which the customer leaves."""


@dataclass(slots=True)
class Customer:
    case: Case
    told: set[str] = field(default_factory=set[str])
    idle: int = 0

    def answer(self, words: str, open_wishes: Sequence[Wish], *, is_done: bool) -> tuple[str, bool]:
        """The customer's reply to the agent's words, and whether the customer leaves.

        `open_wishes`: the wishes that no change of the records concerns yet. `is_done`: none is open.
        """
        asks = "?" in words
        if is_done and (not asks or _MORE.search(words)):
            return GOODBYE, True
        facts = self._facts_asked(words)
        new = [fact for fact in facts if fact not in self.told]
        self.told.update(facts)
        if not new:
            self.idle += 1
            if self.idle >= _PATIENCE:
                return GIVES_UP, True
        if facts:
            return " ".join(facts), False
        if asks:
            return ("Yes, please." if _YES_OR_NO.search(words) else "I do not know that."), False
        if open_wishes and len(open_wishes) < len(self.case.wishes):
            return f"And the other thing? {words_of(open_wishes[0])}", False
        return "I am still waiting for it to be done.", False

    def _facts_asked(self, words: str) -> list[str]:
        facts: list[str] = []
        if _IDENTITY.search(words):
            facts.append(who_of(self.case.customer))
        if _COLOUR.search(words):
            facts += [liked_colours(wish) for wish in self.case.wishes if wish.request == "exchange"]
        if _ADDRESS.search(words) and self.case.address:
            facts.append(f"My new address is {self.case.address}.")
        if facts or "?" not in words:
            return facts
        if _UNKNOWN.search(words):
            facts.append("I do not have that at hand.")
        if facts or _WISH.search(words):
            facts += [words_of(wish) for wish in self.case.wishes] or [MOVED]
        return facts


def liked_colours(wish: Wish) -> str:
    first, second = wish.colours
    return f"I would like the {wish.item} in {first}, or in {second} if there is none."


def goal(task: Task) -> str:
    """Instructions for a language model that plays the customer."""
    case = Case.model_validate(task.data)
    facts = [who_of(case.customer), *(words_of(wish) for wish in case.wishes)]
    facts += [liked_colours(wish) for wish in case.wishes if wish.request == "exchange"]
    if case.address:
        facts.append(
            f"I have moved. All orders that can still be redirected shall go to my new address: {case.address}."
        )
    return (
        "You contact a web shop. " + " ".join(facts) + " You say yes to what serves this, accept what the shop's rules "
        "forbid, and know nothing of order numbers or rules. You are done when the assistant has told you, for each of "
        "your wishes, that it is done or cannot be done."
    )


_TRAIN, _HELD_OUT = range(2000), range(2000, 2500)


class RetailDesk:
    """One shop, and its current customer."""

    async def reset(self, task: Task, episode: Episode) -> None:
        self._case = Case.model_validate(task.data)
        self._shop = self._case.shop
        self._right = self._case.model_copy(deep=True)
        self._customer = Customer(self._case)
        model = os.environ.get("GAVEL_USER_MODEL")
        self._person = SimulatedUser(model, "a customer of a web shop", goal).meet(episode) if model else None
        self._heard: set[str] = set()
        """The customer's words since the first message, which names no colour."""
        self._found: set[str] = set()
        """Ids of customers, found by name and postcode."""
        self._seen: set[str] = set()
        """Facts that the agent has looked up: order ids, topics, and items whose stock it knows."""
        self._unseen: list[str] = []
        """Facts that changes depended on and the agent had not looked up or asked before."""
        self._touched: set[str] = set()
        """Keys of all changes: order ids, and items with the declined request."""

    async def find_customer(self, name: str, postcode: str) -> dict[str, object]:
        """Find a customer and the ids of their orders. Name and postcode must both be right."""
        found = self._shop.customer(name, postcode)
        self._found.add(found.customer_id)
        orders = [order.order_id for order in self._shop.orders_of(found.customer_id)]
        return {"customer_id": found.customer_id, "orders": orders}

    async def get_order(self, order_id: str) -> dict[str, object]:
        """Look up an order of a customer who was found."""
        order = self._order(order_id)
        self._seen.add(order.order_id)
        return order.model_dump(exclude={"customer_id"})

    async def read_policy(self, topic: Topic) -> dict[str, object]:
        """Read today's policy on a topic."""
        self._seen.add(topic)
        return self._case.policies.read(topic)

    async def find_stock(self, item: str) -> list[str]:
        """The colours of an item that are in stock."""
        if plain(item) not in self._shop.stock:
            raise ValueError(f"the shop does not sell {item}")
        self._seen.add(f"stock of {plain(item)}")
        return self._shop.stock[plain(item)]

    async def return_item(self, order_id: str, item: str, refund_to: RefundTo) -> str:
        """Take an item back and refund it."""
        self._order(order_id)
        self._shop.return_item(order_id, item, refund_to)
        self._changed(order_id, order_id, "returns")
        return f"the {plain(item)} of order {order_id} is refunded to {refund_to}"

    async def exchange_item(self, order_id: str, item: str, colour: str) -> str:
        """Exchange an item for the same one in another colour that is in stock."""
        self._order(order_id)
        self._shop.exchange_item(order_id, item, colour)
        self._changed(order_id, order_id, "exchanges", f"stock of {plain(item)}")
        self._must_have_heard([colour])
        return f"the {plain(item)} of order {order_id} is exchanged for {plain(colour)}"

    async def cancel_order(self, order_id: str) -> str:
        """Cancel a whole order that is not sent yet."""
        self._order(order_id)
        self._shop.cancel_order(order_id)
        self._changed(order_id, order_id, "cancellations")
        return f"order {order_id} is cancelled"

    async def change_address(self, order_id: str, address: str) -> str:
        """Send an order that is not sent yet to another address."""
        self._order(order_id)
        self._shop.change_address(order_id, address)
        self._changed(order_id, order_id, "addresses")
        return f"order {order_id} goes to {address}"

    async def decline(self, customer_id: str, item: str, request: Request, reason: Reason) -> str:
        """Note that a customer's request about an item is declined, and why."""
        if customer_id not in self._found:
            raise ValueError(f"no customer {customer_id} was found yet: call find_customer first")
        self._shop.decline(customer_id, item, request, reason)
        orders = self._shop.orders_of(customer_id)
        about = [order.order_id for order in orders if any(each.name == plain(item) for each in order.items)]
        self._changed(f"{request} {plain(item)}", *about, TOPICS[request])
        if reason == "out_of_stock":
            self._changed(f"{request} {plain(item)}", f"stock of {plain(item)}")
            liked = [wish.colours for wish in self._case.wishes if wish.item == plain(item)]
            self._must_have_heard([colour for colours in liked for colour in colours])
        return f"the request about the {plain(item)} is declined: {reason}"

    async def observe(self, action: str) -> object:
        if self._person is not None:
            said, goes = await self._person.observe(action)
            words = said or ""
        else:
            waiting = self._open_wishes()
            is_done = not waiting and bool(self._touched)
            words, goes = self._customer.answer(action, waiting, is_done=is_done)
        self._heard.update(re.findall(r"\w+", words.casefold()))
        return done(words) if goes else words

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the records are correct, and every change came after looking up what it depends on."""
        last = [message for message in trajectory.messages() if message["role"] == "assistant"][-1:]
        told = bool(last) and bool((last[0].get("content") or "").strip())
        ended = trajectory.status == "finished" and told
        return ended and not self._unseen and bool(self._touched) and self._shop.same_as(self._right.after)

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: the share of correct changes among those that are correct or made."""
        right = {_key(change) for change in self._right.right}
        return len(right & self._touched) / max(1, len(right | self._touched))

    def _order(self, order_id: str) -> Order:
        order = self._shop.order(order_id)
        if order.customer_id not in self._found:
            raise ValueError(f"order {order_id} belongs to nobody who was found yet: call find_customer first")
        return order

    def _changed(self, key: str, *needed: str) -> None:
        self._touched.add(key)
        self._unseen += [each for each in needed if each not in self._seen]

    def _must_have_heard(self, colours: list[str]) -> None:
        """Notes colours that the customer has not named: an agent that picks them, or does not ask, has guessed."""
        self._unseen += [colour for colour in colours if plain(colour) not in self._heard]

    def _open_wishes(self) -> list[Wish]:
        mine = self._shop.orders_of(self._case.customer.customer_id)
        order_of = {item.name: order.order_id for order in mine for item in order.items}
        dealt_with = self._touched
        return [
            wish for wish in self._case.wishes if not {order_of[wish.item], f"{wish.request} {wish.item}"} & dealt_with
        ]


def _key(change: Change) -> str:
    return f"{change.request} {change.item}" if change.tool == "decline" else change.order_id


scenario = Scenario(
    name="retail_desk",
    system=render("scenarios/retail_desk_system.j2").strip(),
    environment=RetailDesk,
    tasks=DrawnTasks(_TRAIN, draw_task),
    held_out=DrawnTasks(_HELD_OUT, draw_task),
    max_turns=20,
    max_steps=40,
    rubric=render("scenarios/retail_desk_rubric.j2").strip(),
)


_WHO = re.compile(r"I am (\w+ \w+), postcode (\d+)")
_NEW_ADDRESS = re.compile(r"My new address is ([^.]+)")
_WISHES: tuple[tuple[Request, re.Pattern[str]], ...] = (
    ("return", re.compile(r"send the (\w+) back")),
    ("exchange", re.compile(r"the (\w+) in another colour")),
    ("cancel", re.compile(r"order with the (\w+)")),
)
_COLOURS = re.compile(r"the (\w+) in (\w+), or in (\w+)")


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Finds the customer, looks up orders, asks, decides by the policies, and tells the result."""
    customer = yield from _find_customer(opening)
    orders: list[Any] = []
    for number in customer["orders"]:
        orders.append(json.loads((yield Call("get_order", {"order_id": number}))))
    if "redirect" in opening:
        yield from _redirect(orders)
    for request, pattern in _WISHES:
        for name in pattern.findall(opening):
            order, item = next((order, item) for order in orders for item in order["items"] if item["name"] == name)
            declined = yield from _deal_with(request, order, item)
            if declined:
                about = {"customer_id": customer["customer_id"], "item": name, "request": request}
                yield Call("decline", {**about, "reason": declined})
    yield "Your requests have been dealt with as our policies allow."


def _find_customer(opening: str) -> Generator[Call | str, str, Any]:
    words = opening if _WHO.search(opening) else (yield "Could you tell me your name and postcode?")
    name, postcode = _WHO.findall(words)[0]
    return json.loads((yield Call("find_customer", {"name": name, "postcode": postcode})))


def _redirect(orders: list[Any]) -> Turns:
    address = _NEW_ADDRESS.findall((yield "What is your new address?"))[0]
    allowed = json.loads((yield Call("read_policy", {"topic": "addresses"})))["allowed_statuses"]
    for order in orders:
        if order["status"] in allowed:
            yield Call("change_address", {"order_id": order["order_id"], "address": address})


def _deal_with(request: Request, order: Any, item: Any) -> Generator[Call | str, str, str | None]:
    """Does what the wish asks, or returns the reason to decline it."""
    policy = json.loads((yield Call("read_policy", {"topic": TOPICS[request]})))
    where = {"order_id": order["order_id"], "item": item["name"]}
    if request == "cancel":
        if order["status"] not in policy["allowed_statuses"]:
            return "too_late"
        yield Call("cancel_order", {"order_id": order["order_id"]})
        return None
    if order["days"] > policy["within_days"]:
        return "too_late"
    if request == "return":
        refund_to = policy["opened_items_refunded_to"] if item["opened"] else "card"
        if refund_to == "no":
            return "opened"
        yield Call("return_item", {**where, "refund_to": refund_to})
        return None
    if item["opened"] and not policy["opened_items"]:
        return "opened"
    asked = yield f"Which colour would you like for the {item['name']}?"
    liked = next(colours for name, *colours in _COLOURS.findall(asked) if name == item["name"])
    stock = json.loads((yield Call("find_stock", {"item": item["name"]})))
    colour = next((colour for colour in liked if colour in stock), None)
    if colour is None:
        return "out_of_stock"
    yield Call("exchange_item", {**where, "colour": colour})
    return None


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Finds customer and orders, and grants every wish without reading a policy."""
    customer = yield from _find_customer(opening)
    for number in customer["orders"]:
        order = json.loads((yield Call("get_order", {"order_id": number})))
        for item in order["items"]:
            if item["name"] in opening and "back" in opening:
                yield Call("return_item", {"order_id": number, "item": item["name"], "refund_to": "card"})
            elif item["name"] in opening and "cancel" in opening:
                yield Call("cancel_order", {"order_id": number})
    while True:
        yield "It is done."


def refuser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Declines every wish without looking at orders or policies."""
    customer = yield from _find_customer(opening)
    for request, pattern in _WISHES:
        for item in pattern.findall(opening):
            about = {"customer_id": customer["customer_id"], "item": item, "request": request}
            yield Call("decline", {**about, "reason": "too_late"})
    while True:
        yield "I am sorry, that cannot be done."


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "refuser": refuser}
