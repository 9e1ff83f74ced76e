"""Rows of a file and the attempts found in them; checks of a trajectory; tool calls and schemas in OpenAI's form."""

import ast
import json
import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Required, TypeGuard, TypeVar, cast

from pydantic import JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from gavel.base.errors import GavelError
from gavel.base.fields import FieldError, problem
from gavel.llm.types import Message
from gavel.scenarios.group import RecordVersionError, TrajectoryGroup
from gavel.scenarios.trajectory import MessageOrChoice, NotANumberError, Trajectory


class RowError(GavelError):
    """A file holds data that cannot be judged."""


def refused(where: str, problem: str, remedy: str) -> RowError:
    """The error for a row that has a format, and holds something else than that."""
    return RowError(f"{where} cannot be judged: {problem}", remedy)


@contextmanager
def refusing(where: str) -> Generator[None]:
    """Raises `RowError` for what a record's model does not take, with its place and field."""
    try:
        yield
    except (RecordVersionError, NotANumberError) as error:
        raise RowError(f"{where} cannot be read: {error.message}", error.remedy) from error
    except ValidationError as error:
        raise refused(where, problem(error), _IN_OPENAI) from error
    except FieldError as error:
        raise refused(where, error.message, _IN_OPENAI) from error
    except (TypeError, ValueError, AttributeError) as error:  # a stored choice may lack its message's fields
        raise refused(where, str(error), _IN_OPENAI) from error


_IN_OPENAI = "Rows hold messages and tools in OpenAI's chat format."


@dataclass(frozen=True, slots=True)
class Row:
    where: str
    """File and line (or item, or sample), for messages."""
    value: Any
    """The decoded JSON value."""
    is_cells: bool = False
    """Whether it is a row of a table: CSV, Parquet or Arrow."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory with the row that it comes from."""

    trajectory: Trajectory
    row: Row
    form: str
    """The format's name for the user."""
    task: dict[str, JsonValue] | None = None
    """The format's own task fields. None = it has none: the opening messages identify the task."""
    prompt: int | None = None
    """Number of prompt messages, if the format separates them: they may hold examples."""


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """A group that the file stores as a group."""

    group: TrajectoryGroup
    row: Row
    form: str


Found = Attempt | WholeGroup


@dataclass(slots=True)
class Source:
    """The files being read."""

    left_out: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Where rows without anything to judge stand, by reason."""
    notes: list[str] = field(default_factory=list[str])
    """Other notes for the user on how it was read."""

    def leave_out(self, row: Row, reason: str, count: int = 1) -> None:
        self.left_out.setdefault(reason, []).extend([row.where] * count)

    def told(self) -> list[str]:
        """`2 × row without completion`, for each reason, with the first such row."""
        return [f"{len(where):,} × {reason}; first: {where[0]}" for reason, where in self.left_out.items()]


@dataclass(frozen=True, slots=True)
class Format:
    """A file format, as a reader of rows."""

    name: str
    fields: tuple[str, ...]
    """Fields that every row of it has; `a|b` = one of them. Used to name the nearest format."""
    fits: Callable[[Any], bool]
    read: Callable[[Sequence[Row], Source], Iterable[Found]]
    task: str = ""
    """The name for its own task ids."""


def is_object(value: Any, *fields: str) -> TypeGuard[dict[str, Any]]:
    """Whether it is a JSON object with these fields; `a|b` = one of them."""
    if not (isinstance(value, dict) and fields):
        return isinstance(value, dict)
    return all(any(name in value for name in each.split("|")) for each in fields)


def at(value: Any, path: str) -> Any:
    """The value of a field, or at a dotted path (`out.0.text`), also into JSON text; `ABSENT` where there is none."""
    for part in [path] if is_object(value, path) else path.split("."):
        value = cell(value)
        if is_list(value) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = value[part] if is_object(value, part) else ABSENT
    return value


ABSENT = object()


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if is_list(value) else []


def first_of(fields: Mapping[str, Any], *names: str) -> Any:
    """The value of the first field that exists and is not empty; None if there is none."""
    return next((value for name in names if (value := fields.get(name))), None)


Item = TypeVar("Item", bound=Trajectory | TrajectoryGroup)
INDEPENDENT = "independent_reward"
"""Metric of a reward that does not come from Gavel's judge."""
_REWARDS = ("reward", "score", "label")


class _Call(TypedDict, total=False):
    function: dict[str, Any] | None
    custom: dict[str, Any] | None


class _Message(TypedDict, total=False):
    role: Required[str]
    tool_calls: list[_Call] | None
    function_call: dict[str, Any] | None


class _Function(TypedDict, total=False):
    parameters: dict[str, Any] | None


class _Tool(_Function, total=False):
    function: _Function | None


_MESSAGES, _TOOLS = TypeAdapter(list[_Message]), TypeAdapter(list[_Tool])


def trajectory(
    messages: list[Message],
    where: str,
    *,
    tools: list[Message] | None = None,
    fields: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    **more: Any,
) -> Trajectory:
    """A trajectory with a row's other `fields` as its metadata. A reward among them becomes a metric, too,
    and `metrics` of numbers are its metrics.

    Raises `RowError` when it cannot be judged.
    """
    rest = dict(fields or {})
    if is_object(own := rest.get("metrics")) and all(as_number(value) is not None for value in own.values()):
        metrics = {**rest.pop("metrics"), **(metrics or {})}
    numbers = {name: number for name, value in (metrics or {}).items() if (number := as_number(value)) is not None}
    if (reward := as_number(rest.get(reward_name(rest)))) is not None:
        numbers.setdefault(INDEPENDENT, reward)
    with refusing(where):
        found = Trajectory(
            messages_and_choices=list[MessageOrChoice](messages), tools=tools, metadata=rest, metrics=numbers, **more
        )
    return check_item(found, where)


def reward_name(fields: Mapping[str, Any]) -> str:
    """The first reward among the fields; empty if there is none. A label counts only if it is a yes or no: other labels
    name classes."""
    numbers = {name: as_number(fields.get(name)) for name in _REWARDS}
    read = (name for name, each in numbers.items() if each is not None and (name != "label" or each in (0.0, 1.0)))
    return next(read, "")


_DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,\d{1,2})%?")


def as_number(value: Any) -> float | None:
    """A finite number, also from text as in tables (`0,9` and `90%` as well); None for anything else."""
    if isinstance(value, str):
        text = value.strip()
        text = text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text
        try:
            value = float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
        except ValueError:
            return {"true": 1.0, "false": 0.0}.get(text.lower())
    try:
        number = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:  # an integer above 10³⁰⁸
        return None
    return number if math.isfinite(number) else None


def joined(parts: list[Any]) -> Any:
    """The text of a content that is one plain text, else its joined parts."""
    match parts:
        case [{"type": "text", "text": str() as text, **rest}] if not rest:
            return text
        case _:
            return parts


def with_single_score(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores; a single one is also the attempt's own reward."""
    return {**scores, INDEPENDENT: next(iter(scores.values()))} if len(scores) == 1 else dict(scores)


_LONGEST_REASON = 300


def first_line(text: Any) -> str:
    """The first line of an error, without a traceback, as the reason of a failed attempt."""
    line = next((line for line in str(text or "").splitlines() if line.strip()), "no reason is recorded")
    line = line.partition("Traceback (most recent call last)")[0].strip() or str(text).strip().splitlines()[-1]
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"


def check_item(item: Item, where: str) -> Item:
    """Returns the item. Raises `RowError` if a judge cannot be shown its messages and tools, or a judge's score is
    NaN."""
    for each in [item] if isinstance(item, Trajectory) else item.trajectories:
        with refusing(where):
            for history in each.histories():
                _MESSAGES.validate_python(history.messages())
                _TOOLS.validate_python(history.tools or [])
        if not each.messages():
            raise RowError(f"{where} has a trajectory without messages.", "Delete it, or put its messages in.")
        scores = [each.judgement.score, *(vote.score for vote in each.judgement.votes)] if each.judgement else []
        if any(score is not None and not math.isfinite(score) for score in scores):
            raise RowError(f"{where} has a judge's score that is no number.", "Write null where there is no score.")
    return item


def as_message(value: Any, role: str) -> list[Message]:
    """A text as one message of `role`; a list of messages, or one message, unchanged."""
    if isinstance(value, list):
        return cast(list[Message], value)
    return [cast(Message, value)] if isinstance(value, dict) else [{"role": role, "content": value}]


IDS = ("call_id", "toolUseId", "toolCallId", "tool_call_id", "tool_use_id", "source_call_id", "id")
NAMES = ("name", "toolName", "tool_name", "function_name")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "input_parameters")


def id_of(fields: Mapping[str, Any]) -> Any:
    """The id of a call or of its result, in any program's spelling; None if there is none."""
    return first_of(fields, *IDS)


def name_of(fields: Mapping[str, Any]) -> str:
    """The name of a call's tool, in any program's spelling."""
    return str(first_of(fields, *NAMES) or "")


def tool_call(call: Any) -> Any:
    """A tool call in OpenAI's form: other programs keep it flat, with other names, or arguments as an object or JSON
    text. Anything else is returned unchanged."""
    fields = loaded(call)
    if not is_object(fields):
        return call
    body = fields.get("function")
    if is_object(body):
        said = body.get("arguments", "")
        return fields if isinstance(said, str) else {**fields, "function": {**body, "arguments": as_json(said)}}
    if "custom" in fields or not (isinstance(body, str) or is_object(fields, "|".join(NAMES))):
        return fields
    given = next((fields[name] for name in _ARGUMENTS if name in fields), None)
    rest = {k: v for k, v in fields.items() if k not in (*IDS, *NAMES, *_ARGUMENTS, "function", "type")}
    identity = {"id": id_of(fields)} if id_of(fields) else {}
    function = {"name": body if isinstance(body, str) else name_of(fields), "arguments": as_json(given)}
    return {**rest, **identity, "type": "function", "function": function}


def as_json(arguments: Any) -> str:
    """Arguments as JSON text, as OpenAI's calls carry them."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)


def loaded(text: Any) -> Any:
    """A text parsed as JSON, None if it is invalid; any other value unchanged."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None


def cell(text: Any) -> Any:
    """What a cell holds: JSON (also of a text that is JSON), or a list or dict as Python prints it, where it is one;
    else its text. Any value but a text is unchanged."""
    if not isinstance(text, str):
        return text
    start = text.lstrip()[:2]
    if start in ('"{', '"[') and isinstance(quoted := loaded(text), str):
        return cell(quoted)
    if start[:1] not in ("[", "{"):
        return text
    if (value := loaded(text)) is not None:
        return value
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def tools(value: Any) -> list[Message] | None:
    """Tool schemas in OpenAI's form, from a list, its JSON text or an object by their names, in any vendor's form; None
    if there are none."""
    value = loaded(value)
    if is_object(value):
        value = [{"name": name, **schema} for name, schema in value.items()]
    if not is_list(value) or not value:
        return cast("list[Message] | None", value) or None
    return [tool for each in value for tool in _tools(each)]


def _tools(value: Any) -> list[Any]:
    """The tools that an entry holds: Gemini's entries are lists of them."""
    if isinstance(value, str):
        value = found if is_object(found := loaded(value)) and found else value
    if not is_object(value):
        return [value]
    if is_list(declared := first_of(value, "functionDeclarations", "function_declarations")):
        return [tool for each in declared for tool in _tools(each)]
    fields = value["toolSpec"] if is_object(value.get("toolSpec")) else value
    if "function" in fields or "name" not in fields or fields.get("type", "function") not in ("function", "custom"):
        return [value]  # in OpenAI's form, or a tool that the vendor runs
    schema = first_of(fields, "parameters", "input_schema", "inputSchema")
    schema = schema["json"] if is_object(schema, "json") else schema
    function = {"name": fields["name"], "description": fields.get("description"), "parameters": schema}
    return [{"type": "function", "function": {name: each for name, each in function.items() if each is not None}}]
