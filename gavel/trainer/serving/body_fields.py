"""Fields of a request's JSON, which may be of any shape: each is read as what it must be, or refused by its place.

text(item, "call_id", "input item 2")     ->   "c1", or BadRequest: input item 2 has no call_id
"""

from collections.abc import Mapping
from typing import Any, cast

from gavel.llm.types import Message
from gavel.trainer.serving.errors import BadRequest, shown

_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def text(holder: Message, name: str, where: str) -> str:
    """A field that must be there, and be text. Raises `BadRequest`."""
    if name not in holder:
        raise BadRequest(f"{where} has no {name}", f'Give it {{"{name}": "…"}}.')
    value = holder[name]
    if not isinstance(value, str):
        raise BadRequest(f"the {name} of {where} is {kind_of(value)}", "Give it as text.")
    return value


def an_object(value: Any, where: str) -> Message:
    """A JSON object. Raises `BadRequest`."""
    if not isinstance(value, dict):
        raise BadRequest(f"{where} is {kind_of(value)}", "Give an object: {…}.")
    return cast("Message", value)


def objects(value: Any, where: str, each: str) -> list[Message]:
    """A list of JSON objects; `each` is what one is called. Raises `BadRequest`."""
    if not isinstance(value, list):
        raise BadRequest(f"{where} is {kind_of(value)}", "Give a list of objects: [{…}].")
    return [an_object(item, f"{each} {number}") for number, item in enumerate(cast("list[Any]", value))]


def parts(content: Any, where: str) -> list[Message]:
    """The parts of a content that is not plain text. Raises `BadRequest`."""
    if not isinstance(content, list):
        raise BadRequest(f"{where} is {kind_of(content)}", "Give text, or a list of parts with text.")
    return objects(content, where, f"{where}, part")


def check_types(body: Mapping[str, Any], types: Mapping[str, type]) -> None:
    """Raises `BadRequest` for a field of another type than the vendor's API takes; null is none."""
    for name, wanted in types.items():
        value = body.get(name)
        if value is not None and not isinstance(value, wanted):
            raise BadRequest(f"{name}={shown(value)} is not {_KINDS[wanted]}", f"Correct it, or leave {name} out.")


def kind_of(value: Any) -> str:
    return _KINDS.get(type(value), "of an unknown kind")
