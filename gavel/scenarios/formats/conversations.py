"""Rows that are conversations: Gavel's own groups and trajectories, and lists of messages in any vendor's form.

    {"messages": [{"role": "user", "content": "Hi"}, …], "tools": […], "task": 7}
    [{"role": "user", "content": "Hi"}, …]
    {"system": "You run a desk.", "messages": [… Anthropic's blocks …], "tools": [{"name": …, "input_schema": …}]}
    {"instructions": "You run a desk.", "input": […], "output": [… Responses items …]}
    {"conversations": [{"from": "human", "value": "Hi"}, …]}

Such rows may be mixed in one file. Other fields of a row are kept as metadata.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError

from gavel.llm.types import Message
from gavel.scenarios.formats import bodies, chat
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Found,
    Row,
    RowError,
    Source,
    WholeGroup,
    as_list,
    check_item,
    is_list,
    is_object,
    trajectory,
    unusable,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.formats.text import is_conversation
from gavel.scenarios.group import RecordVersionError, from_row
from gavel.scenarios.trajectory import NotANumberError, Trajectory

GROUPS, TRAJECTORIES = "Gavel groups", "Gavel trajectories"
_OWN = "trajectories|messages_and_choices"
_LISTS = ("messages", "conversations", "conversation", "contents")
_SYSTEM = ("system", "system_prompt", "systemInstruction", "system_instruction")


def fits(value: Any) -> bool:
    if is_list(value):
        return not value or is_conversation(value)
    return is_object(value, _OWN) or _list_name(value) is not None or _is_response(value)


def _list_name(value: Any) -> str | None:
    found = next((name for name in _LISTS if is_object(value, name)), None)
    if found is None and is_object(value, "items") and is_list(value["items"]) and is_conversation(value["items"]):
        return "items"
    return found


def _is_response(value: Any) -> bool:
    if not is_object(value, "input", "output") or not is_list(value["output"]):
        return False
    return all(is_object(item, "type|role") for item in value["output"])


def read(rows: Sequence[Row], source: Source) -> Iterator[Found]:
    if later := [row for row in rows if is_object(row.value) and row.value.get("previous_response_id")]:
        source.notes.append(
            f"{len(later):,} of the responses go on from an earlier one (previous_response_id), whose items their rows "
            f"do not hold: the judge does not see them. First: {later[0].where}."
        )
    for row in rows:
        if is_list(row.value):
            yield _attempt(row, {"messages": row.value}, "messages")
        elif is_object(row.value, _OWN):
            yield _own(row)
        elif (name := _list_name(row.value)) is not None:
            yield from _read_choices(row, name)
        else:
            yield _response(row)


def _own(row: Row) -> Found:
    try:
        if "trajectories" in row.value:
            return WholeGroup(check_item(from_row(row.value), row.where), row, GROUPS)
        return Attempt(check_item(Trajectory.model_validate(row.value), row.where), row, TRAJECTORIES)
    except (RecordVersionError, NotANumberError) as error:
        raise RowError(f"{row.where} cannot be read: {error.message}", error.remedy) from error
    except (ValidationError, TypeError) as error:
        raise unusable(row.where, error) from error


def _read_choices(row: Row, name: str) -> Iterator[Attempt]:
    """One attempt for each choice stored beside the request's messages; without choices, the messages themselves."""
    fields = cast(Message, row.value)
    choices = as_list(fields.get("choices"))
    if not choices or not all(is_object(choice, "message") for choice in choices):
        yield _attempt(row, fields, name)
        return
    if not is_list(fields[name]):
        raise RowError(f"{row.where} cannot be judged: messages: it is no list.", "Write a list of messages.")
    rest = {key: value for key, value in fields.items() if key != "choices"}
    for choice in choices:
        ended = {"status": "truncated"} if choice.get("finish_reason") == "length" else {}
        found = _attempt(row, {**rest, name: [*rest[name], choice["message"]]}, name, **ended)
        yield replace(found, prompt=len(found.trajectory.messages_and_choices) - 1)


def _attempt(row: Row, fields: Message, name: str, **more: Any) -> Attempt:
    rest = {key: value for key, value in fields.items() if key not in (name, "tools", "functions")}
    given = bodies.contents(fields[name]) if name == "contents" else fields[name]
    said, form = chat.messages(given, row.where)
    if said and said[0].get("role") not in ("system", "developer"):
        said = [*_system(rest, row), *said]
    tools = bodies.tools(fields)
    return Attempt(trajectory(said, row.where, tools=tools, fields=rest, **more), row, form)


def _system(fields: Message, row: Row) -> list[Message]:
    """Takes the system message out of its separate field."""
    name = next((name for name in _SYSTEM if fields.get(name)), None)
    if name is None or not isinstance(fields[name], str | list | dict):
        return []
    given = fields.pop(name)
    if name in _SYSTEM[2:]:
        return bodies.gemini_system({name: given})
    return chat.messages(bodies.system([given] if isinstance(given, dict) else given), row.where)[0]


def _response(row: Row) -> Attempt:
    """The conversation of a response and its input."""
    fields = cast(Message, row.value)
    items = bodies.read_request({"input": fields["input"] or [], "instructions": fields.get("instructions")})
    said, _ = chat.messages([*items, *fields["output"]], row.where)
    rest = {key: value for key, value in fields.items() if key not in ("input", "instructions", "output", "tools")}
    attempt = trajectory(said, row.where, tools=openai_tools(fields.get("tools")), fields=rest)
    earlier = fields.get("previous_response_id")
    task = {"previous_response_id": earlier} if earlier else None
    return Attempt(attempt, row, chat.RESPONSES, task, len(chat.messages(items, row.where)[0]))


CONVERSATIONS = Format(chat.OPENAI, ("messages|conversations|messages_and_choices",), fits, read)
