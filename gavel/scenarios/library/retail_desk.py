"""The retail desk: identify the customer, look up orders and today's policies, then change the records.

Every episode has its own shop and policies. Changes are checked for feasibility, never against the policies: that is
the agent's job. Success is the one correct end state, reached after looking up the facts.

A task is one wish about an item, two wishes about items of different orders, or a new address for all orders that are
not yet on their way. About one wish in five is to be declined.

The customer is scripted; GAVEL_USER_MODEL names a language model to play it, from `goal`. It says who it is, which
colour it likes and where it lives, when it is asked. It answers by keywords, deterministically, and leaves once its
wishes have been handled, rightly or wrongly, or its patience ends.
"""

import os
import random
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from gavel.prompts import render
from gavel.scenarios.episode import Episode
from gavel.scenarios.library._shared import ask, drawn, repeating, shipped
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

Status = Literal["new", "packed", "sent", "delivered", "cancelled"]
RefundTo = Literal["card", "store_credit"]
Request = Literal["return", "exchange", "cancel"]
Reason = Literal["too_late", "opened", "out_of_stock"]
Topic = Literal["returns", "exchanges", "cancellations", "addresses"]
TOPICS: dict[Request, Topic] = {"return": "returns", "exchange": "exchanges", "cancel": "cancellations"}
WISHES: dict[Request, str] = {
    "return": "I want to send the {item} back and get my money.",
    "exchange": "I would like the {item} in another colour.",
    "cancel": "Please cancel the order with the {item}.",
}
MOVED = "I have moved. Please send all my orders that you can still redirect to my new address."
ITEMS = (
    "kettle", "lamp", "toaster", "backpack", "tent", "jacket", "blanket", "radio", "clock", "mug", "vase", "chair",
    "scarf", "helmet", "pillow", "fan",
)  # fmt: skip
COLOURS: tuple[str, ...] = ("red", "blue", "green", "black", "white", "yellow")
NAMES = (
    "Ada", "Bruno", "Chen", "Dora", "Emil", "Farah", "Goran", "Hanna", "Ivo", "Jana", "Kofi", "Lena", "Musa", "Nora",
)  # fmt: skip
SURNAMES = ("Abel", "Brandt", "Costa", "Duran", "Eriksen", "Fuchs", "Grau", "Hale", "Ito", "Jansen", "Kaya", "Lund")
STREETS = ("Mill Lane", "Harbour Road", "Oak Street", "Station Road", "Church Hill", "Bridge Street", "Elm Avenue")
_LONGEST = 120
_DECLINED = 0.2
"""Share of wishes that the policies forbid."""


class Item(BaseModel):
    name: str
    colour: str
    price: int
    opened: bool
    state: str = "kept"
    """Final state of the item: `kept`, `returned to card`, `exchanged for red`."""


class Order(BaseModel):
    order_id: str
    customer_id: str = ""
    status: Status
    days: int
    """Days since delivery; 0 before it."""
    address: str
    items: list[Item]


class Customer(BaseModel):
    customer_id: str
    name: str
    postcode: str

    @property
    def words(self) -> str:
        return f"I am {self.name}, postcode {self.postcode}."


class Shop(BaseModel):
    customers: list[Customer]
    orders: list[Order]
    stock: dict[str, list[str]]
    """Colours by item."""
    declined: list[tuple[str, str, Request, Reason]] = []
    """Declined requests: customer, item, request and reason."""

    def orders_of(self, customer_id: str) -> list[Order]:
        return [order for order in self.orders if order.customer_id == customer_id]

    @property
    def state(self) -> tuple[object, ...]:
        """The records, regardless of the spelling of addresses and the order of declined requests."""
        orders = [
            (each.order_id, each.status, plain(each.address), [(item.name, item.state) for item in each.items])
            for each in self.orders
        ]
        return orders, sorted(self.declined)


def plain(text: str) -> str:
    """A text normalized for comparison: without case, commas, dots and extra spaces."""
    return " ".join(text.replace(",", " ").replace(".", " ").split()).casefold()


class Policies(BaseModel):
    """The shop's rules, drawn anew for every task."""

    return_days: int
    opened_returns: Literal["card", "store_credit", "no"]
    """Refund method for an opened item."""
    exchange_days: int
    opened_exchanges: bool
    cancel_statuses: list[Status]
    address_statuses: list[Status]

    def read(self, topic: Topic) -> dict[str, Any]:
        """The policy on a topic, as the agent reads it."""
        return {
            "returns": {"within_days": self.return_days, "opened_items_refunded_to": self.opened_returns},
            "exchanges": {"within_days": self.exchange_days, "opened_items": self.opened_exchanges},
            "cancellations": {"allowed_statuses": self.cancel_statuses},
            "addresses": {"allowed_statuses": self.address_statuses},
        }[topic]


def reason_against(request: Request, order: Order, item: Item, policy: Mapping[str, Any]) -> Reason | None:
    """Why the policy forbids what is requested, apart from stock; None if it does not."""
    if request == "cancel":
        return None if order.status in policy["allowed_statuses"] else "too_late"
    if order.days > policy["within_days"]:
        return "too_late"
    is_refused = not policy["opened_items"] if request == "exchange" else policy["opened_items_refunded_to"] == "no"
    return "opened" if item.opened and is_refused else None


def granted(request: Request, order: Order, item: Item, policy: Mapping[str, Any], colour: str | None) -> Call:
    """The change that grants a request."""
    where = {"order_id": order.order_id, "item": item.name}
    match request:
        case "return":
            refund_to = policy["opened_items_refunded_to"] if item.opened else "card"
            return Call("return_item", {**where, "refund_to": refund_to})
        case "exchange":
            return Call("exchange_item", {**where, "colour": colour or ""})
        case "cancel":
            return Call("cancel_order", {"order_id": order.order_id})


class Wish(BaseModel):
    """One request of the customer."""

    request: Request
    item: str
    colours: list[str] = []
    """Accepted colours of an exchange, the preferred one first."""

    @property
    def words(self) -> str:
        return WISHES[self.request].format(item=self.item)

    @property
    def taste(self) -> str:
        """What the customer says of colours; empty if it does not care."""
        liked = ", or in ".join(self.colours)
        return f"I would like the {self.item} in {liked} if there is none." if liked else ""


class Case(BaseModel):
    """The hidden state of a task."""

    shop: Shop
    policies: Policies
    customer: Customer
    wishes: list[Wish]
    address: str = ""
    """New address for all orders that are not yet sent; empty for other wishes."""
    says_who: bool
    """Whether the customer's first message identifies the customer."""

    @property
    def mine(self) -> list[Order]:
        return self.shop.orders_of(self.customer.customer_id)

    @property
    def right(self) -> list[Call]:
        """The changes that the policies require."""
        if self.address:
            due = [order.order_id for order in self.mine if order.status in self.policies.address_statuses]
            return [Call("change_address", {"order_id": each, "address": self.address}) for each in due]
        return [self._right_change(wish) for wish in self.wishes]

    def find(self, wish: Wish) -> tuple[Order, Item]:
        """The item of a wish, and its order."""
        return next((order, item) for order in self.mine for item in order.items if item.name == wish.item)

    def _right_change(self, wish: Wish) -> Call:
        (order, item), policy = self.find(wish), self.policies.read(TOPICS[wish.request])
        reason = reason_against(wish.request, order, item, policy)
        colour = next((colour for colour in wish.colours if colour in self.shop.stock[item.name]), None)
        if reason is None and (colour or wish.request != "exchange"):
            return granted(wish.request, order, item, policy, colour)
        about = {"customer_id": self.customer.customer_id, "item": wish.item, "request": wish.request}
        return Call("decline", {**about, "reason": reason or "out_of_stock"})


def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` is its case."""
    dice = random.Random(f"retail desk {number}")
    kind = dice.choice(("one", "one", "two", "address"))
    declined = [dice.random() < _DECLINED for _ in range(2)]
    while True:
        case = _draw_case(dice, kind)
        refused = [change.name == "decline" for change in case.right]
        if 0 < len(refused) < len(case.mine) if case.address else refused == declined[: len(refused)]:
            break
    hello = dice.choice(("Hello.", "Good morning.", "Hi there."))
    wanted = [MOVED] if case.address else [wish.words for wish in case.wishes]
    words = " ".join([hello, *([case.customer.words] if case.says_who else []), *wanted])
    return Task(id=f"customer-{number}", user=words, data=case.model_dump(mode="json"))


def _draw_case(dice: random.Random, kind: str) -> Case:
    names = [f"{first} {last}" for first, last in zip(dice.sample(NAMES, 3), dice.sample(SURNAMES, 3), strict=True)]
    customers = [
        Customer(customer_id=f"C{number}", name=name, postcode=str(dice.randint(10000, 99999)))
        for name, number in zip(names, dice.sample(range(100, 1000), 3), strict=True)
    ]
    orders, numbers = list[Order](), iter(dice.sample(range(10000, 100000), 12))
    for customer in customers:
        items = iter(dice.sample(ITEMS, 8))
        for _ in range(dice.randint(2, 4)):
            names = [next(items) for _ in range(dice.randint(1, 2))]
            orders.append(_draw_order(dice, customer, str(next(numbers)), names))
    dice.shuffle(orders)
    stock = {item: sorted(dice.sample(COLOURS, dice.randint(1, 4))) for item in ITEMS}
    customer = dice.choice(customers)
    policies = Policies(
        return_days=dice.choice((7, 14, 30, 60)),
        opened_returns=dice.choice(("card", "store_credit", "no")),
        exchange_days=dice.choice((14, 30, 45)),
        opened_exchanges=dice.random() < 0.5,
        cancel_statuses=dice.choice((["new"], ["new", "packed"])),
        address_statuses=dice.choice((["new"], ["new", "packed"])),
    )
    shop = Shop(customers=customers, orders=orders, stock=stock)
    case = Case(shop=shop, policies=policies, customer=customer, wishes=[], says_who=dice.random() < 0.5)
    if kind == "address":
        case.address = _draw_address(dice)
        return case
    case.wishes = [_draw_wish(dice, order) for order in dice.sample(case.mine, 2 if kind == "two" else 1)]
    return case


def _draw_address(dice: random.Random) -> str:
    return f"{dice.randint(1, 99)} {dice.choice(STREETS)}"


def _draw_order(dice: random.Random, customer: Customer, number: str, names: list[str]) -> Order:
    status: Status = dice.choice(("new", "packed", "delivered", "delivered", "delivered"))
    is_there, items = status == "delivered", list[Item]()
    for name in names:
        colour, price = dice.choice(COLOURS), dice.randint(5, 200)
        items.append(Item(name=name, colour=colour, price=price, opened=is_there and dice.random() < 0.5))
    days, address, customer_id = dice.randint(1, 70) if is_there else 0, _draw_address(dice), customer.customer_id
    return Order(order_id=number, customer_id=customer_id, status=status, days=days, address=address, items=items)


def _draw_wish(dice: random.Random, order: Order) -> Wish:
    """A wish about an order; only delivered orders can be returned or exchanged, and only others cancelled."""
    item = dice.choice(order.items)
    if order.status != "delivered":
        return Wish(request="cancel", item=item.name)
    if dice.random() < 0.5:
        return Wish(request="return", item=item.name)
    others = [colour for colour in COLOURS if colour != item.colour]
    return Wish(request="exchange", item=item.name, colours=dice.sample(others, 2))


_IDENTITY = re.compile(r"(?i)\b(names?|postcodes?|postal|zip|identi\w*|verify|who|details|account)\b")
_COLOUR = re.compile(r"(?i)\b(colou?rs?|prefer\w*|alternatives?|stock|available)\b")
_ADDRESS = re.compile(r"(?i)\b(address\w*|where|street)\b")
_WISH = re.compile(r"(?i)\b(which|what|item|order|help)\b")
_UNKNOWN = re.compile(r"(?i)\b(numbers?|ids?|e-?mail|phone)\b")
_YES_OR_NO = re.compile(
    r"(?i)(^|[.!,;:?]\s*)(so )?(shall|should|do|does|is|are|was|would|may|can|could|will|have|did)\b"
    r"|\b(confirm|proceed|go ahead|okay|ok|correct|right|agree)\b"
)
_PATIENCE = 4
"""Messages without progress after which the customer leaves."""


@dataclass(slots=True)
class ScriptedCustomer:
    case: Case
    told: set[str] = field(default_factory=set[str])
    idle: int = 0

    def answer(self, words: str, open_wishes: Sequence[Wish], *, is_done: bool) -> tuple[str, bool]:
        """The customer's reply to the agent's words, and whether the customer leaves.

        `open_wishes`: the wishes that no change of the records concerns yet. `is_done`: none is open.
        """
        asks = "?" in words
        if is_done and (not asks or re.search(r"(?i)\banything (else|more)\b", words)):
            return "Thank you. Goodbye.", True
        facts = self._facts_asked(words)
        self.idle += self.told.issuperset(facts)
        self.told.update(facts)
        if self.idle >= _PATIENCE:
            return "I have waited long enough. Goodbye.", True
        if facts:
            return " ".join(facts), False
        if asks:
            return ("Yes, please." if _YES_OR_NO.search(words) else "I do not know that."), False
        if open_wishes and len(open_wishes) < len(self.case.wishes):
            return f"And the other thing? {open_wishes[0].words}", False
        return "I am still waiting for it to be done.", False

    def _facts_asked(self, words: str) -> list[str]:
        case, facts = self.case, list[str]()
        if _IDENTITY.search(words):
            facts.append(case.customer.words)
        if _COLOUR.search(words):
            facts += [wish.taste for wish in case.wishes if wish.taste]
        if _ADDRESS.search(words) and case.address:
            facts.append(f"My new address is {case.address}.")
        if facts or "?" not in words:
            return facts
        if _UNKNOWN.search(words):
            facts.append("I do not have that at hand.")
        if facts or _WISH.search(words):
            facts += [wish.words for wish in case.wishes] or [MOVED]
        return facts


def goal(task: Task) -> str:
    """Instructions for a language model that plays the customer."""
    return render("scenarios/retail_desk_goal.j2", case=Case.model_validate(task.data)).strip()


class RetailDesk:
    """One shop, and its current customer. An impossible change raises `ValueError`."""

    async def reset(self, task: Task, episode: Episode) -> None:
        model, case = os.environ.get("GAVEL_USER_MODEL"), Case.model_validate(task.data)
        self._person = SimulatedUser(model, "a customer of a web shop", goal).meet(episode) if model else None
        self._open(case.model_copy(deep=True), found={case.customer.customer_id})
        for change in case.right:
            await getattr(self, change.name)(**change.arguments)
        self._right, self._after = self._touched, self._shop.state
        self._open(case, found=set())

    def _open(self, case: Case, found: set[str]) -> None:
        self._case, self._shop, self._customer = case, case.shop, ScriptedCustomer(case)
        self._found = found
        """Ids of customers, found by name and postcode."""
        self._seen: set[str] = set()
        """Facts that the agent has looked up or heard: order ids, topics, items whose stock it knows, and words of the
        customer since the first message, which names no colour."""
        self._is_blind = False
        """Whether a change depended on a fact that the agent had not looked up or asked before."""
        self._touched: set[str] = set()
        """Keys of all changes: order ids, and items with the declined request."""

    async def find_customer(self, name: str, postcode: str) -> dict[str, object]:
        """Find a customer and the ids of their orders. Name and postcode must both be right."""
        for each in self._shop.customers:
            if (plain(each.name), plain(each.postcode)) == (plain(name), plain(postcode)):
                self._found.add(each.customer_id)
                orders = [order.order_id for order in self._shop.orders_of(each.customer_id)]
                return {"customer_id": each.customer_id, "orders": orders}
        raise ValueError("no customer has this name and postcode")

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
        self._delivered(order_id, item).state = f"returned to {refund_to}"
        self._changed(order_id, order_id, "returns")
        return f"the {plain(item)} of order {order_id} is refunded to {refund_to}"

    async def exchange_item(self, order_id: str, item: str, colour: str) -> str:
        """Exchange an item for the same one in another colour that is in stock."""
        found, wanted = self._delivered(order_id, item), plain(colour)
        if wanted not in self._shop.stock.get(found.name, []):
            raise ValueError(f"there is no {found.name} in {colour} in stock")
        found.state = f"exchanged for {wanted}"
        self._changed(order_id, order_id, "exchanges", f"stock of {found.name}", f"heard {wanted}")
        return f"the {found.name} of order {order_id} is exchanged for {wanted}"

    async def cancel_order(self, order_id: str) -> str:
        """Cancel a whole order that is not sent yet."""
        self._not_sent(order_id).status = "cancelled"
        self._changed(order_id, order_id, "cancellations")
        return f"order {order_id} is cancelled"

    async def change_address(self, order_id: str, address: str) -> str:
        """Send an order that is not sent yet to another address."""
        order = self._not_sent(order_id)
        if not 0 < len(address.strip()) <= _LONGEST:
            raise ValueError(f"an address has 1 to {_LONGEST} characters")
        order.address = address
        self._changed(order_id, order_id, "addresses")
        return f"order {order_id} goes to {address}"

    async def decline(self, customer_id: str, item: str, request: Request, reason: Reason) -> str:
        """Note that a customer's request about an item is declined, and why."""
        if customer_id not in self._found:
            raise ValueError(f"no customer {customer_id} was found yet: call find_customer first")
        if len(item) > _LONGEST:
            raise ValueError(f"an item's name has at most {_LONGEST} characters")
        name, orders = plain(item), self._shop.orders_of(customer_id)
        if (entry := (customer_id, name, request, reason)) in self._shop.declined:
            raise ValueError("this is declined already")
        self._shop.declined.append(entry)
        needed = [order.order_id for order in orders if any(each.name == name for each in order.items)]
        if reason == "out_of_stock":
            liked = [colour for wish in self._case.wishes if wish.item == name for colour in wish.colours]
            needed += [f"stock of {name}", *(f"heard {colour}" for colour in liked)]
        self._changed(f"{request} {name}", TOPICS[request], *needed)
        return f"the request about the {name} is declined: {reason}"

    async def observe(self, action: str) -> object:
        if self._person is not None:
            said, goes = await self._person.observe(action)
        else:
            keys = [{self._case.find(it)[0].order_id, f"{it.request} {it.item}"} for it in self._case.wishes]
            waiting = [wish for wish, own in zip(self._case.wishes, keys, strict=True) if not own & self._touched]
            said, goes = self._customer.answer(action, waiting, is_done=not waiting and bool(self._touched))
        words = said or ""
        self._seen |= {f"heard {word}" for word in re.findall(r"\w+", words.casefold())}
        return done(words) if goes else words

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the records are correct, and every change came after looking up what it depends on."""
        last = [message for message in trajectory.messages() if message["role"] == "assistant"][-1:]
        told = trajectory.status == "finished" and any((each.get("content") or "").strip() for each in last)
        return told and not self._is_blind and bool(self._touched) and self._shop.state == self._after

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: the share of correct changes among those that are correct or made."""
        return len(self._right & self._touched) / max(1, len(self._right | self._touched))

    def _order(self, order_id: str) -> Order:
        order = next((each for each in self._shop.orders if each.order_id == order_id), None)
        if order is None:
            raise ValueError(f"there is no order {order_id}")
        if order.customer_id not in self._found:
            raise ValueError(f"order {order_id} belongs to nobody who was found yet: call find_customer first")
        return order

    def _not_sent(self, order_id: str) -> Order:
        order = self._order(order_id)
        if order.status in ("sent", "delivered", "cancelled"):
            raise ValueError(f"order {order_id} is {order.status}")
        return order

    def _delivered(self, order_id: str, item: str) -> Item:
        order = self._order(order_id)
        if order.status != "delivered":
            raise ValueError(f"order {order_id} is {order.status}, not delivered")
        found = next((each for each in order.items if each.name == plain(item)), None)
        if found is None:
            raise ValueError(f"order {order_id} has no {item}")
        if found.state != "kept":
            raise ValueError(f"the {found.name} of order {order_id} is {found.state} already")
        return found

    def _changed(self, key: str, *needed: str) -> None:
        self._touched.add(key)
        self._is_blind |= not self._seen.issuperset(needed)


scenario = shipped("retail_desk", *drawn(draw_task, 2000, 500), environment=RetailDesk, max_turns=20, max_steps=40)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Finds the customer, looks up orders, asks, decides by the policies, and tells the result."""
    customer = yield from _find_customer(opening)
    orders: list[Order] = []
    for number in customer["orders"]:
        orders.append(Order.model_validate((yield from ask("get_order", order_id=number))))
    if "redirect" in opening:
        address = re.findall(r"My new address is ([^.]+)", (yield "What is your new address?"))[0]
        allowed = (yield from ask("read_policy", topic="addresses"))["allowed_statuses"]
        for order in orders:
            if order.status in allowed:
                yield Call("change_address", {"order_id": order.order_id, "address": address})
    for request, name in _requests(opening):
        order, item = next((order, item) for order in orders for item in order.items if item.name == name)
        policy = yield from ask("read_policy", topic=TOPICS[request])
        reason, colour = reason_against(request, order, item, policy), None
        if request == "exchange" and reason is None:
            said = yield f"Which colour would you like for the {name}?"
            liked = re.findall(rf"the {name} in (\w+), or in (\w+)", said)[0]
            stock = yield from ask("find_stock", item=name)
            colour = next((colour for colour in liked if colour in stock), None)
            reason = None if colour else "out_of_stock"
        if reason is None:
            yield granted(request, order, item, policy, colour)
        else:
            about = {"customer_id": customer["customer_id"], "item": name, "request": request}
            yield Call("decline", {**about, "reason": reason})
    yield "Your requests have been dealt with as our policies allow."


def _find_customer(opening: str) -> Generator[Call | str, str, Any]:
    words = opening if "postcode" in opening else (yield "Could you tell me your name and postcode?")
    name, postcode = re.findall(r"I am (\w+ \w+), postcode (\d+)", words)[0]
    return (yield from ask("find_customer", name=name, postcode=postcode))


def _requests(opening: str) -> list[tuple[Request, str]]:
    """The requests of an opening, and their items."""
    return [
        (request, item)
        for request, words in WISHES.items()
        for item in re.findall(words.format(item=r"(\w+)"), opening)
    ]


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Finds customer and orders, and grants every wish without reading a policy."""
    customer = yield from _find_customer(opening)
    for number in customer["orders"]:
        order = yield from ask("get_order", order_id=number)
        for item in order["items"]:
            if item["name"] in opening and "back" in opening:
                yield Call("return_item", {"order_id": number, "item": item["name"], "refund_to": "card"})
            elif item["name"] in opening and "cancel" in opening:
                yield Call("cancel_order", {"order_id": number})
    yield from repeating("It is done.")(task, opening, dice)


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
