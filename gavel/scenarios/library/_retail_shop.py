"""A web shop's records: customers, their orders, stock, and declined requests.

Changes are checked for feasibility, never against the policies: that is the agent's job.

The customers' wishes, and the correct records afterwards, follow from the number of the task.

A task is one wish about an item, two wishes about items of different orders, or a new address for all orders that are
not yet on their way. About one wish in five is to be declined.
"""

import random
from functools import cache
from typing import Literal

from pydantic import BaseModel

from gavel.scenarios.task import Task

Status = Literal["new", "packed", "sent", "delivered", "cancelled"]
RefundTo = Literal["card", "store_credit"]
Request = Literal["return", "exchange", "cancel"]
Reason = Literal["too_late", "opened", "out_of_stock"]

_LONGEST = 120


class Item(BaseModel):
    name: str
    colour: str
    price: int
    opened: bool
    state: str = "kept"
    """Final state of the item: `kept`, `returned to card`, `exchanged for red`."""


class Order(BaseModel):
    order_id: str
    customer_id: str
    status: Status
    days: int
    """Days since delivery; 0 before it."""
    address: str
    items: list[Item]


class Customer(BaseModel):
    customer_id: str
    name: str
    postcode: str


class Shop(BaseModel):
    """One shop. An impossible change raises `ValueError`."""

    customers: list[Customer]
    orders: list[Order]
    stock: dict[str, list[str]]
    """Colours by item."""
    declined: list[tuple[str, str, Request, Reason]] = []
    """Declined requests: customer, item, request and reason."""

    def customer(self, name: str, postcode: str) -> Customer:
        wanted = (plain(name), plain(postcode))
        for each in self.customers:
            if (plain(each.name), plain(each.postcode)) == wanted:
                return each
        raise ValueError("no customer has this name and postcode")

    def orders_of(self, customer_id: str) -> list[Order]:
        return [order for order in self.orders if order.customer_id == customer_id]

    def order(self, order_id: str) -> Order:
        for each in self.orders:
            if each.order_id == order_id:
                return each
        raise ValueError(f"there is no order {order_id}")

    def return_item(self, order_id: str, item: str, refund_to: RefundTo) -> None:
        self._delivered(order_id, item).state = f"returned to {refund_to}"

    def exchange_item(self, order_id: str, item: str, colour: str) -> None:
        found, wanted = self._delivered(order_id, item), plain(colour)
        if wanted not in self.stock.get(found.name, []):
            raise ValueError(f"there is no {found.name} in {colour} in stock")
        found.state = f"exchanged for {wanted}"

    def cancel_order(self, order_id: str) -> None:
        self._not_sent(order_id).status = "cancelled"

    def change_address(self, order_id: str, address: str) -> None:
        order = self._not_sent(order_id)
        if not 0 < len(address.strip()) <= _LONGEST:
            raise ValueError(f"an address has 1 to {_LONGEST} characters")
        order.address = address

    def decline(self, customer_id: str, item: str, request: Request, reason: Reason) -> None:
        if all(customer_id != each.customer_id for each in self.customers):
            raise ValueError(f"there is no customer {customer_id}")
        if len(item) > _LONGEST:
            raise ValueError(f"an item's name has at most {_LONGEST} characters")
        if (entry := (customer_id, plain(item), request, reason)) in self.declined:
            raise ValueError("this is declined already")
        self.declined.append(entry)

    def same_as(self, other: "Shop") -> bool:
        """Whether the records agree, regardless of the spelling of addresses and the order of declined requests."""
        return self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        orders = [
            (each.order_id, each.status, plain(each.address), tuple((item.name, item.state) for item in each.items))
            for each in self.orders
        ]
        return (orders, sorted(self.declined))

    def _not_sent(self, order_id: str) -> Order:
        order = self.order(order_id)
        if order.status in ("sent", "delivered", "cancelled"):
            raise ValueError(f"order {order_id} is {order.status}")
        return order

    def _delivered(self, order_id: str, item: str) -> Item:
        order = self.order(order_id)
        if order.status != "delivered":
            raise ValueError(f"order {order_id} is {order.status}, not delivered")
        found = next((each for each in order.items if each.name == plain(item)), None)
        if found is None:
            raise ValueError(f"order {order_id} has no {item}")
        if found.state != "kept":
            raise ValueError(f"the {found.name} of order {order_id} is {found.state} already")
        return found


def plain(text: str) -> str:
    """A text normalized for comparison: without case, commas, dots and extra spaces."""
    return " ".join(text.replace(",", " ").replace(".", " ").split()).casefold()


Topic = Literal["returns", "exchanges", "cancellations", "addresses"]
TOPICS: dict[Request, Topic] = {"return": "returns", "exchange": "exchanges", "cancel": "cancellations"}
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
MOVED = "I have moved. Please send all my orders that you can still redirect to my new address."
_DECLINED = 0.2
"""Share of wishes that the policies forbid."""


class Policies(BaseModel):
    """The shop's rules, drawn anew for every task."""

    return_days: int
    opened_returns: Literal["card", "store_credit", "no"]
    """Refund method for an opened item."""
    exchange_days: int
    opened_exchanges: bool
    cancel_statuses: list[Status]
    address_statuses: list[Status]

    def read(self, topic: Topic) -> dict[str, object]:
        """The policy on a topic, as the agent reads it."""
        told: dict[Topic, dict[str, object]] = {
            "returns": {"within_days": self.return_days, "opened_items_refunded_to": self.opened_returns},
            "exchanges": {"within_days": self.exchange_days, "opened_items": self.opened_exchanges},
            "cancellations": {"allowed_statuses": self.cancel_statuses},
            "addresses": {"allowed_statuses": self.address_statuses},
        }
        return told[topic]


class Wish(BaseModel):
    """One request of the customer."""

    request: Request
    item: str
    colours: list[str] = []
    """Accepted colours of an exchange, the preferred one first."""


class Change(BaseModel):
    """One correct change of the records."""

    tool: Literal["return_item", "exchange_item", "cancel_order", "change_address", "decline"]
    order_id: str = ""
    item: str = ""
    refund_to: RefundTo = "card"
    colour: str = ""
    address: str = ""
    request: Request = "return"
    reason: Reason = "too_late"

    def make(self, shop: Shop, customer_id: str) -> None:
        match self.tool:
            case "return_item":
                shop.return_item(self.order_id, self.item, self.refund_to)
            case "exchange_item":
                shop.exchange_item(self.order_id, self.item, self.colour)
            case "cancel_order":
                shop.cancel_order(self.order_id)
            case "change_address":
                shop.change_address(self.order_id, self.address)
            case "decline":
                shop.decline(customer_id, self.item, self.request, self.reason)


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
    def right(self) -> list[Change]:
        """The changes that the policies require."""
        mine = self.shop.orders_of(self.customer.customer_id)
        if self.address:
            due = [order for order in mine if order.status in self.policies.address_statuses]
            return [Change(tool="change_address", order_id=each.order_id, address=self.address) for each in due]
        return [_right_change(wish, mine, self.policies, self.shop) for wish in self.wishes]

    @property
    def after(self) -> Shop:
        """The correct records at the end."""
        shop = self.shop.model_copy(deep=True)
        for change in self.right:
            change.make(shop, self.customer.customer_id)
        return shop


def _right_change(wish: Wish, orders: list[Order], policies: Policies, shop: Shop) -> Change:
    order, item = next((order, item) for order in orders for item in order.items if item.name == wish.item)
    declined = Change(tool="decline", item=wish.item, request=wish.request)
    match wish.request:
        case "return":
            if order.days > policies.return_days:
                return declined
            if item.opened and policies.opened_returns == "no":
                return declined.model_copy(update={"reason": "opened"})
            refund_to = policies.opened_returns if item.opened and policies.opened_returns != "no" else "card"
            return Change(tool="return_item", order_id=order.order_id, item=item.name, refund_to=refund_to)
        case "exchange":
            if order.days > policies.exchange_days:
                return declined
            if item.opened and not policies.opened_exchanges:
                return declined.model_copy(update={"reason": "opened"})
            colour = next((colour for colour in wish.colours if colour in shop.stock[item.name]), None)
            if colour is None:
                return declined.model_copy(update={"reason": "out_of_stock"})
            return Change(tool="exchange_item", order_id=order.order_id, item=item.name, colour=colour)
        case "cancel":
            if order.status not in policies.cancel_statuses:
                return declined
            return Change(tool="cancel_order", order_id=order.order_id)


@cache
def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` is its case."""
    dice = random.Random(f"retail desk {number}")
    kind = dice.choice(("one", "one", "two", "address"))
    declined = [dice.random() < _DECLINED for _ in range(2)]
    while True:
        case = _draw_case(dice, kind)
        if case is None:
            continue
        if kind == "address":
            due, all_orders = len(case.right), len(case.shop.orders_of(case.customer.customer_id))
            if 0 < due < all_orders:
                break
        elif all((change.tool == "decline") == no for change, no in zip(case.right, declined, strict=False)):
            break
    return Task(id=f"customer-{number}", user=_opening(dice, case), data=case.model_dump(mode="json"))


def _draw_case(dice: random.Random, kind: str) -> Case | None:
    names = [f"{first} {last}" for first, last in zip(dice.sample(NAMES, 3), dice.sample(SURNAMES, 3), strict=True)]
    customers = [
        Customer(customer_id=f"C{number}", name=name, postcode=str(dice.randint(10000, 99999)))
        for name, number in zip(names, dice.sample(range(100, 1000), 3), strict=True)
    ]
    orders: list[Order] = []
    numbers = iter(dice.sample(range(10000, 100000), 12))
    for customer in customers:
        items = iter(dice.sample(ITEMS, 8))
        for _ in range(dice.randint(2, 4)):
            orders.append(
                _draw_order(dice, customer, str(next(numbers)), [next(items) for _ in range(dice.randint(1, 2))])
            )
    dice.shuffle(orders)
    stock = {item: sorted(dice.sample(COLOURS, dice.randint(1, 4))) for item in ITEMS}
    customer = dice.choice(customers)
    shop = Shop(customers=customers, orders=orders, stock=stock)
    policies = Policies(
        return_days=dice.choice((7, 14, 30, 60)),
        opened_returns=dice.choice(("card", "store_credit", "no")),
        exchange_days=dice.choice((14, 30, 45)),
        opened_exchanges=dice.random() < 0.5,
        cancel_statuses=dice.choice((["new"], ["new", "packed"])),
        address_statuses=dice.choice((["new"], ["new", "packed"])),
    )
    case = Case(shop=shop, policies=policies, customer=customer, wishes=[], says_who=dice.random() < 0.5)
    if kind == "address":
        case.address = f"{dice.randint(1, 99)} {dice.choice(STREETS)}"
        return case
    mine = dice.sample(shop.orders_of(customer.customer_id), 2 if kind == "two" else 1)
    case.wishes = [wish for order in mine if (wish := _draw_wish(dice, order)) is not None]
    return case if len(case.wishes) == len(mine) else None


def _draw_order(dice: random.Random, customer: Customer, order_id: str, names: list[str]) -> Order:
    status: Status = dice.choice(("new", "packed", "delivered", "delivered", "delivered"))
    items = [
        Item(
            name=name,
            colour=dice.choice(COLOURS),
            price=dice.randint(5, 200),
            opened=status == "delivered" and dice.random() < 0.5,
        )
        for name in names
    ]
    days = dice.randint(1, 70) if status == "delivered" else 0
    address = f"{dice.randint(1, 99)} {dice.choice(STREETS)}"
    return Order(
        order_id=order_id, customer_id=customer.customer_id, status=status, days=days, address=address, items=items
    )


def _draw_wish(dice: random.Random, order: Order) -> Wish | None:
    """A wish about an order; only delivered orders can be returned or exchanged, and only others cancelled."""
    item = dice.choice(order.items)
    if order.status != "delivered":
        return Wish(request="cancel", item=item.name)
    if dice.random() < 0.5:
        return Wish(request="return", item=item.name)
    others = [colour for colour in COLOURS if colour != item.colour]
    return Wish(request="exchange", item=item.name, colours=dice.sample(others, 2))


def words_of(wish: Wish) -> str:
    """The customer's opening words for a wish."""
    return {
        "return": f"I want to send the {wish.item} back and get my money.",
        "exchange": f"I would like the {wish.item} in another colour.",
        "cancel": f"Please cancel the order with the {wish.item}.",
    }[wish.request]


def who_of(customer: Customer) -> str:
    return f"I am {customer.name}, postcode {customer.postcode}."


def _opening(dice: random.Random, case: Case) -> str:
    hello = dice.choice(("Hello.", "Good morning.", "Hi there."))
    wanted = [MOVED] if case.address else [words_of(wish) for wish in case.wishes]
    return " ".join([hello, *([who_of(case.customer)] if case.says_who else []), *wanted])
