"""Tools: the schema that an agent is shown, and what happens to everything it may write."""

import asyncio
import email
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from email.message import Message
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tool_results import text_of_result
from gavel.scenarios.tools import Tool, Toolbox, ToolDefinitionError, ToolResult, done


class Address(BaseModel):
    street: str
    number: int = Field(ge=1)


def book(
    city: str,
    nights: int,
    room: Literal["single", "double"] = "single",
    extras: list[str] = [],  # noqa: B006
    price: float | None = None,
) -> str:
    """Book a room.

    Only in cities that have hotels.

    Args:
        city: Where to sleep.
        nights: How long to stay.
    """
    return f"{nights} nights in {city}, {room}, {extras}, {price}"


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    return Tool(function).schema["function"]["parameters"]


def error_of(result: ToolResult) -> str:
    """The message of a tool error, which is JSON with one key."""
    assert (result.error, result.done) == (True, False)
    ((key, said),) = json.loads(result.content).items()
    assert key == "error"
    return said


def test_the_signature_and_the_docstring_are_the_schema() -> None:
    assert Tool(book).schema == {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Book a room.\nOnly in cities that have hotels.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["city", "nights"],
                "properties": {
                    "city": {"type": "string", "description": "Where to sleep."},
                    "nights": {"type": "integer", "description": "How long to stay."},
                    "room": {"type": "string", "enum": ["single", "double"], "default": "single"},
                    "extras": {"type": "array", "items": {"type": "string"}, "default": []},
                    "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
                },
            },
        },
    }


async def test_pydantic_models_annotated_and_default_fields_describe_and_bound_an_argument() -> None:
    def send(to: Address) -> str:
        return f"{to.street} {to.number}"

    schema = parameters(send)
    assert schema["properties"]["to"] == {"$ref": "#/$defs/Address"}
    assert schema["$defs"]["Address"]["properties"]["number"]["minimum"] == 1
    assert (await Tool(send).call('{"to": {"street": "Elm", "number": 2}}')).content == "Elm 2"
    assert "to.number: field required" in error_of(await Tool(send).call('{"to": {"street": "Elm"}}'))

    def annotated(count: Annotated[int, Field(ge=1)]) -> int:
        return count

    def defaulted(count: int = Field(ge=1)) -> int:
        return count

    for function in (annotated, defaulted):
        assert parameters(function)["properties"] == {"count": {"type": "integer", "minimum": 1}}
        assert parameters(function)["required"] == ["count"]
        assert "greater than or equal to 1" in error_of(await Tool(function).call('{"count": 0}'))
        assert (await Tool(function).call('{"count": 2}')).content == "2"


@pytest.mark.parametrize("hint", [Task, Task | None, Optional[Task]])  # noqa: UP045
async def test_the_task_is_filled_in_and_never_shown_or_written_by_the_agent(hint: Any) -> None:
    def secret(guess: str, task: Any = None) -> bool:
        return guess == task.data["answer"]

    secret.__annotations__["task"] = hint
    tool, task = Tool(secret), Task(user="guess", data={"answer": "42"})
    assert list(parameters(secret)["properties"]) == ["guess"]
    assert "$defs" not in parameters(secret)
    assert (await tool.call('{"guess": "42"}', task)).content == "true"
    forged = json.dumps({"guess": "1", "task": {"user": "", "data": {"answer": "1"}}})
    assert "task: extra inputs are not permitted" in error_of(await tool.call(forged, task))


def _with_args(*args: str) -> None: ...
def _with_kwargs(**kwargs: str) -> None: ...
def _positional(x: int, /) -> None: ...
def _untyped(x) -> None: ...  # type: ignore[no-untyped-def]
def _unknown(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _callback(x: Callable[[int], int]) -> None: ...
def _object(x: object, y: type(pytest)) -> None: ...  # type: ignore[valid-type]
def _underscored(_x: int) -> None: ...
def _reserved(model_config: int) -> None: ...
async def _yields() -> AsyncIterator[int]:
    yield 1


NO_TOOLS = [_with_args, _with_kwargs, _positional, _untyped, _unknown, _callback, _object, _underscored, _reserved]


@pytest.mark.parametrize("function", [*NO_TOOLS, _yields, lambda: 1])
def test_a_function_that_is_no_tool_is_refused_by_name_with_a_remedy(function: Callable[..., Any]) -> None:
    with pytest.raises(ToolDefinitionError, match=function.__name__) as caught:
        Tool(function)
    assert caught.value.remedy
    with pytest.raises(ToolDefinitionError, match="two tools are called book"):
        Toolbox([book, book])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"city": "Rome"', "the arguments of book are not valid JSON"),
        (" ", "not valid JSON"),
        *((text, "not valid JSON") for text in ("[" * 100_000, '{"nights": ' + "1" * 5000 + "}")),
        ('{"city": "Rome"}', "book: nights: field required"),
        ('{"city": "Rome", "nights": "two"}', "nights: input should be a valid integer"),
        ('{"city": null, "nights": 1}', "city: input should be a valid string"),
        ('{"city": "Rome", "nights": 1, "room": "suite"}', "room: input should be 'single' or 'double'"),
        ('{"city": "Rome", "nights": 1, "extras": ["a", 2]}', "extras.1: input should be a valid string"),
        ('{"city": "Rome", "nights": 1, "pets": 3}', "pets: extra inputs are not permitted"),
        ("[]", "the arguments of book must be a JSON object"),
    ],
)
async def test_a_bad_call_is_a_tool_error_that_says_what_is_wrong(arguments: str, message: str) -> None:
    assert message in error_of(await Tool(book).call(arguments))


@given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_no_text_of_an_agent_raises(arguments: str) -> None:
    result = asyncio.run(Tool(book).call(arguments))
    assert result.error
    result.content.encode()


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


def test_a_result_is_text_or_json_that_a_request_can_carry() -> None:
    values: list[Any] = ["as it is", {"a": [1, 2.5, "ü"]}, ["a\ud800"], "\udfff"]
    texts = ["as it is", '{"a": [1, 2.5, "ü"]}', '["a\\ud800"]', "\\udfff"]
    assert [*map(text_of_result, values)] == texts


class Tagged(BaseModel):
    tags: set[str]
    within: list[frozenset[str]]


class Pair(NamedTuple):
    left: int
    right: Any


TAGS = {f"tag {number}" for number in range(20)}
DATABASE = sqlite3.connect(":memory:")
DATABASE.row_factory = sqlite3.Row
SALES = pd.DataFrame({"order": [7, 8], "on": [pd.Timestamp("2026-05-01"), None], "note": ["x" * 200, None]})
FIRST, SECOND = {"order": 7, "on": "2026-05-01T00:00:00", "note": "x" * 200}, {"order": 8, "on": None, "note": None}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (SALES, [FIRST, SECOND]),
        ({"sales": [SALES]}, {"sales": [[FIRST, SECOND]]}),
        (SALES.set_index("order")[["on"]], [{"order": 7, "on": FIRST["on"]}, {"order": 8, "on": None}]),
        (
            pd.DataFrame({"n": [1]}, index=pd.MultiIndex.from_tuples([("a", 2)])),
            [{"level_0": "a", "level_1": 2, "n": 1}],
        ),
        (pd.Series([1.5, None]), [1.5, None]),
        (pd.DataFrame({"id": ["a"], "days": [3]}).iloc[0], {"id": "a", "days": 3}),
        (pd.Series(["b", "b"], name="city").value_counts(), [{"city": "b", "count": 2}]),
        (np.arange(2000), list(range(2000))),
        (np.array([[1.5, np.nan], [np.inf, -np.inf]]), [[1.5, None], ["Infinity", "-Infinity"]]),
        ([float("nan"), Decimal("nan"), pd.NaT, pd.NA, np.float32("nan"), np.datetime64("NaT")], [None] * 6),
        (np.array(["NaT", "2026-05-01"], dtype="datetime64[D]"), [None, "2026-05-01"]),
        (np.array(["2026-05-01"], dtype="datetime64[ns]"), ["2026-05-01T00:00:00.000000000"]),
        (np.array([(1, 2.5)], dtype=[("id", "i4"), ("price", "f8")]), [{"id": 1, "price": 2.5}]),
        ([np.int64(3), np.bool_(True), np.float32(0.5)], [3, True, 0.5]),
        ({np.int64(1): date(2026, 5, 1), Colour.RED: Decimal("19.90")}, {"1": "2026-05-01", "red": "19.90"}),
        (Pair(1, {"b", "a"}), {"left": 1, "right": ["a", "b"]}),
        ([Point(np.int64(3)), Address(street="Elm", number=1)], [{"x": 3}, {"street": "Elm", "number": 1}]),  # type: ignore[arg-type]
        ({(1, 2): None}, {"1,2": None}),
        (map(str, range(2)), ["0", "1"]),
        (Tagged(tags=TAGS, within=[frozenset(TAGS)]), {"tags": sorted(TAGS), "within": [sorted(TAGS)]}),
        (DATABASE.execute("SELECT 7 AS 'order', 'lamp' AS item").fetchone(), {"order": 7, "item": "lamp"}),
    ],
)
def test_a_result_is_shown_in_full_as_records_lists_and_numbers(value: Any, read: Any) -> None:
    assert json.loads(text_of_result(value)) == read


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
MAIL = email.message_from_string("Subject: Lamp\n\nIt arrives on Monday.")
ELEMENT = ElementTree.fromstring('<order id="7"><item>lamp</item></order>')
UNREADABLE = [CIRCLE, MAIL, [ELEMENT], b"png", {"a": [b"png"]}, object(), [object()], {1: 2, "1": 3}, len, Point]


@pytest.mark.parametrize(
    "value", [*UNREADABLE, pd.DataFrame({"a": [b"png"]}), pd.DataFrame([[1, 2]], columns=["a", "a"])]
)
async def test_a_result_without_a_faithful_text_is_a_tool_error_that_says_that_the_call_ran(value: Any) -> None:
    def give() -> Any:
        return value

    def end() -> Any:
        return done(value)

    assert "give ran" in error_of(await Tool(give).call("{}"))
    ended = await Tool(end).call("{}")
    assert ended.error
    assert ended.done


HIDDEN = [bytes, dict[str, list[bytes] | None], threading.Thread, Iterator[bytes], Message, ElementTree.Element]
SHOWN = [pd.DataFrame, pd.Series, np.ndarray, np.int64, str, None, object, Decimal, datetime, Path, Address, Callable]
SHOWN += [list[Point], Point | None, Iterator[Pair]]


@pytest.mark.parametrize("returned", [*HIDDEN, *SHOWN])
def test_a_tool_that_is_said_to_return_what_cannot_be_shown_is_refused_before_it_runs(returned: Any) -> None:
    def give() -> Any:
        raise AssertionError

    give.__annotations__["return"] = returned
    with pytest.raises(ToolDefinitionError, match="dataclasses") if returned in HIDDEN else nullcontext():
        Tool(give)


async def test_a_generator_answers_with_what_it_yields_and_an_endless_one_is_a_tool_error():
    def count(to: int) -> Iterator[int]:
        yield from range(to)

    for episode in (None, Episode(Task(user="Count."))):
        assert (await Tool(count).call('{"to": 3}', episode=episode)).content == "[0, 1, 2]"
        assert "more than 10,000 values" in error_of(await Tool(count).call('{"to": 1000000000}', episode=episode))


async def test_a_plain_function_runs_off_the_event_loop_and_an_asynchronous_one_on_it():
    def plain() -> int:
        return threading.get_ident()

    async def waiting() -> int:
        return threading.get_ident()

    here, episode, tools = str(threading.get_ident()), Episode(Task(user="Where?")), Toolbox([plain, waiting])
    found = [(await Tool(each).call("{}", episode=episode)).content for each in (plain, waiting)]
    found += [(await tools.call(name, "{}")).content for name in ("plain", "plain", "waiting")]
    assert [each == here for each in found] == [False, True, False, False, True]
    assert found[2] == found[3]  # so a connection that one call opens can be used by the next


async def test_an_error_does_not_repeat_all_that_the_agent_wrote():
    def find(name: str) -> str:
        raise LookupError(f"nothing is called {name}")

    long = "x" * 100_000
    for name, arguments in (("find", {"name": long}), ("find", {"name": "x", long: 1}), (long, {})):
        told = error_of(await Toolbox([find]).call(name, json.dumps(arguments)))
        assert len(told) < 4_100
        assert "characters)" in told


NO_FUNCTIONS = ["book", 3, None, {"type": "function", "function": {"name": "book"}}, Point, Point(1), int]


@pytest.mark.parametrize("offered", [*NO_FUNCTIONS, [book], pytest], ids=repr)
def test_what_is_no_function_is_refused_as_a_tool_with_the_remedy(offered: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="is no function") as error:
        Scenario(name="desk", tasks=[Task(id="1", user="?")], tools=[offered])
    assert "made with def" in error.value.remedy
    assert "environment=" in error.value.remedy
