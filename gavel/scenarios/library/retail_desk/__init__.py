"""The retail desk: find out who writes, what they ordered and what today's policies allow, then change the records.

Every episode has a shop of its own, with policies drawn for it. The customer is scripted and answers questions;
GAVEL_USER_MODEL names a language model to play it. Success is the one right end state, reached after looking.
"""

import os
import re

from gavel.prompts import render
from gavel.scenarios.episode import Episode
from gavel.scenarios.library.drawn_tasks import DrawnTasks
from gavel.scenarios.library.retail_desk.customer import Customer, goal
from gavel.scenarios.library.retail_desk.shop import Order, Reason, RefundTo, Request, plain
from gavel.scenarios.library.retail_desk.wishes import TOPICS, Case, Change, Topic, Wish, draw_task
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_TRAIN, _HELD_OUT = range(2000), range(2000, 2500)


class RetailDesk:
    """One shop, and the customer who writes to it."""

    async def reset(self, task: Task, episode: Episode) -> None:
        self._case = Case.model_validate(task.data)
        self._shop = self._case.shop
        self._right = self._case.model_copy(deep=True)
        self._customer = Customer(self._case)
        model = os.environ.get("GAVEL_USER_MODEL")
        self._person = SimulatedUser(model, "a customer of a web shop", goal).meet(episode) if model else None
        self._heard: set[str] = set()
        """Words that the customer has said since the first message, which names no colour."""
        self._found: set[str] = set()
        """Ids of customers, found by name and postcode."""
        self._seen: set[str] = set()
        """What the agent has looked at: order ids, topics, and items whose stock it knows."""
        self._unseen: list[str] = []
        """What changes depended on and was not looked at, or not asked, before them."""
        self._touched: set[str] = set()
        """Order ids, and items with the request that was declined, of all changes."""

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
        """Whether the records are as they must be, and nothing was changed before what it depends on was seen."""
        last = [message for message in trajectory.messages() if message["role"] == "assistant"][-1:]
        told = bool(last) and bool((last[0].get("content") or "").strip())
        ended = trajectory.status == "finished" and told
        return ended and not self._unseen and bool(self._touched) and self._shop.same_as(self._right.after)

    def reward(self, trajectory: Trajectory) -> float:
        """What somebody might write by hand: the share of right changes among those that are right or made."""
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
        """Only the customer knows which colours it likes: who names others, or does not ask, has guessed."""
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
