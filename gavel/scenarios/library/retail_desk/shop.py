"""A web shop's records: customers, their orders, what is in stock, and what was declined.

Every change is checked for what is possible, never for what the policies allow: that is the agent's work.
"""

from typing import Literal

from pydantic import BaseModel

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
    """What became of it: `kept`, `returned to card`, `exchanged for red`."""


class Order(BaseModel):
    order_id: str
    customer_id: str
    status: Status
    days: int
    """Since it was delivered; 0 before that."""
    address: str
    items: list[Item]


class Customer(BaseModel):
    customer_id: str
    name: str
    postcode: str


class Shop(BaseModel):
    """One shop. What cannot be done raises `ValueError`."""

    customers: list[Customer]
    orders: list[Order]
    stock: dict[str, list[str]]
    """Colours by item."""
    declined: list[tuple[str, str, Request, Reason]] = []
    """Customer, item, request and reason."""

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
        order = self.order(order_id)
        if order.status in ("sent", "delivered", "cancelled"):
            raise ValueError(f"order {order_id} is {order.status}")
        order.status = "cancelled"

    def change_address(self, order_id: str, address: str) -> None:
        order = self.order(order_id)
        if order.status in ("sent", "delivered", "cancelled"):
            raise ValueError(f"order {order_id} is {order.status}")
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
        """Whether the records agree, however addresses are spelt and in whatever order things were declined."""
        return self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        orders = [
            (each.order_id, each.status, plain(each.address), tuple((item.name, item.state) for item in each.items))
            for each in self.orders
        ]
        return (orders, sorted(self.declined))

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
    """A text as it is compared: without case, commas, dots, and spaces too many."""
    return " ".join(text.replace(",", " ").replace(".", " ").split()).casefold()
