"""Scripted players of the retail desk. They know what an agent knows: the customer's words and the tools' answers."""

import json
import random
import re
from collections.abc import Generator
from typing import Any

from gavel.scenarios.library.demonstrated_call import Call
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task

_WHO = re.compile(r"I am (\w+ \w+), postcode (\d+)")
_RETURN, _EXCHANGE = re.compile(r"send the (\w+) back"), re.compile(r"the (\w+) in another colour")
_CANCEL, _ADDRESS = re.compile(r"order with the (\w+)"), re.compile(r"My new address is ([^.]+)")
_COLOURS = re.compile(r"the (\w+) in (\w+), or in (\w+)")


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Finds the customer, looks, asks, decides by the policies, and tells."""
    words = opening
    if not _WHO.search(words):
        words += " " + (yield "Could you tell me your name and postcode?")
    name, postcode = _WHO.findall(words)[0]
    customer = json.loads((yield Call("find_customer", {"name": name, "postcode": postcode})))
    orders: list[Any] = []
    for number in customer["orders"]:
        orders.append(json.loads((yield Call("get_order", {"order_id": number}))))
    if "redirect" in opening:
        yield from _redirect(orders)
    for request, pattern in (("return", _RETURN), ("exchange", _EXCHANGE), ("cancel", _CANCEL)):
        for name in pattern.findall(opening):
            order, item = next((order, item) for order in orders for item in order["items"] if item["name"] == name)
            declined = yield from _deal_with(request, order, item)
            if declined:
                about = {"customer_id": customer["customer_id"], "item": name, "request": request}
                yield Call("decline", {**about, "reason": declined})
    yield "Your requests have been dealt with as our policies allow."


def _redirect(orders: list[Any]) -> Turns:
    address = _ADDRESS.findall((yield "What is your new address?"))[0]
    allowed = json.loads((yield Call("read_policy", {"topic": "addresses"})))["allowed_statuses"]
    for order in orders:
        if order["status"] in allowed:
            yield Call("change_address", {"order_id": order["order_id"], "address": address})


def _deal_with(request: str, order: Any, item: Any) -> Generator[Call | str, str, str | None]:
    """Does it, or gives the reason to decline it."""
    topic = {"return": "returns", "exchange": "exchanges", "cancel": "cancellations"}[request]
    policy = json.loads((yield Call("read_policy", {"topic": topic})))
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
    words = opening
    if not _WHO.search(words):
        words += " " + (yield "Who are you?")
    name, postcode = _WHO.findall(words)[0]
    customer = json.loads((yield Call("find_customer", {"name": name, "postcode": postcode})))
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
    """Declines whatever is wanted, without a look at orders or policies."""
    words = opening
    if not _WHO.search(words):
        words += " " + (yield "Who are you?")
    name, postcode = _WHO.findall(words)[0]
    customer = json.loads((yield Call("find_customer", {"name": name, "postcode": postcode})))
    for request, pattern in (("return", _RETURN), ("exchange", _EXCHANGE), ("cancel", _CANCEL)):
        for item in pattern.findall(opening):
            about = {"customer_id": customer["customer_id"], "item": item, "request": request}
            yield Call("decline", {**about, "reason": "too_late"})
    while True:
        yield "I am sorry, that cannot be done."


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "refuser": refuser}
