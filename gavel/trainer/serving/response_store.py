"""Responses that a later request may go on from, by `previous_response_id`, or refer to item by item.

A conversation holds the messages of the one before it, so a chain of responses stores each message once.
"""

from collections import OrderedDict
from collections.abc import Sequence

from gavel.llm.types import Message
from gavel.trainer.serving.body_fields import text
from gavel.trainer.serving.errors import BadRequest, shown

_STORED = 4096
"""Responses that are kept; of more, the one that was used least recently is forgotten."""


class ResponseStore:
    """The conversations of responses, without their instructions."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[str, list[Message]] = OrderedDict()
        self._items: dict[str, Message] = {}
        self._items_of: dict[str, list[str]] = {}

    def add(self, response_id: str, conversation: Sequence[Message], output: Sequence[Message]) -> None:
        """`conversation` ends with the reply, whose items are `output`."""
        self._conversations[response_id] = list(conversation)
        self._items_of[response_id] = [item["id"] for item in output]
        self._items |= {item["id"]: item for item in output}
        while len(self._conversations) > _STORED:
            oldest, _ = self._conversations.popitem(last=False)
            for item_id in self._items_of.pop(oldest):
                del self._items[item_id]

    def conversation(self, response_id: str | None) -> list[Message]:
        """The messages up to a response; none for None. Raises `BadRequest` for one that is not stored."""
        if response_id is None:
            return []
        if not isinstance(response_id, str) or response_id not in self._conversations:
            raise BadRequest(
                f"previous_response_id={shown(response_id)} is not stored here",
                "Send the whole conversation as input, and do not set store to false.",
            )
        self._conversations.move_to_end(response_id)
        return self._conversations[response_id]

    def resolved(self, items: Sequence[Message]) -> list[Message]:
        """`items` with those that they refer to. Raises `BadRequest` for one that is not stored."""
        return [
            self._item(text(item, "id", "an item_reference")) if item.get("type") == "item_reference" else item
            for item in items
        ]

    def _item(self, item_id: str) -> Message:
        if item_id not in self._items:
            raise BadRequest(
                f"the item {item_id!r} is not stored here", "Send the item itself, and do not set store to false."
            )
        return self._items[item_id]
