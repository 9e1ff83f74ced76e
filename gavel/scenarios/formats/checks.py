"""Whether a trajectory has the shapes that a judge's prompt is made of, and what its row says besides the messages."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gavel.base.errors import GavelError
from gavel.base.fields import FieldError, problem
from gavel.llm.types import Message
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import MessageOrChoice, Trajectory

Item = TypeVar("Item", bound=Trajectory | TrajectoryGroup)
INDEPENDENT = "independent_reward"
"""The metric that holds a reward which no judge of Gavel's gave."""
_REWARDS = ("reward", "score", "label")


class _Loose(BaseModel):
    """Only what is read later is checked; whatever else a message carries is kept."""

    model_config = ConfigDict(extra="allow")


class _Call(_Loose):
    function: dict[str, Any] | None = None
    custom: dict[str, Any] | None = None


class _Message(_Loose):
    role: str
    tool_calls: list[_Call] | None = None
    function_call: dict[str, Any] | None = None


class _Function(_Loose):
    parameters: dict[str, Any] | None = None


class _Tool(_Function):
    function: _Function | None = None


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
    """A trajectory whose row has `fields` besides its messages: its metadata. A reward among them is a metric, too.

    Raises `RowError` when it cannot be judged.
    """
    rest = dict(fields or {})
    numbers = {name: number for name, value in (metrics or {}).items() if (number := as_number(value)) is not None}
    if (reward := _reward(rest)) is not None:
        numbers.setdefault(INDEPENDENT, reward)
    try:
        found = Trajectory(
            messages_and_choices=list[MessageOrChoice](messages), tools=tools, metadata=rest, metrics=numbers, **more
        )
    except (FieldError, TypeError) as error:
        raise unusable(where, error) from error
    return checked(found, where)


def _reward(fields: Mapping[str, Any]) -> float | None:
    """The first reward among the fields. A label is one only where it says yes or no: other labels name classes."""
    for name in _REWARDS:
        number = as_number(fields.get(name))
        if number is not None and (name != "label" or number in (0.0, 1.0)):
            return number
    return None


def as_number(value: Any) -> float | None:
    """A finite number, also one that a table keeps as text; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return {"true": 1.0, "false": 0.0}.get(value.strip().lower())
    try:
        number = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:  # an integer above 10³⁰⁸
        return None
    return number if math.isfinite(number) else None


_LONGEST_REASON = 300


def first_line(text: Any) -> str:
    """The first line of an error, without a traceback, as the reason for a failed attempt."""
    line = next((line for line in str(text or "").splitlines() if line.strip()), "no reason is recorded")
    line = line.partition("Traceback (most recent call last)")[0].strip() or str(text).strip().splitlines()[-1]
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"


def checked(item: Item, where: str) -> Item:
    """The item. Raises `RowError` when its messages and tools cannot be shown to a judge, or a judge's score is NaN."""
    for each in [item] if isinstance(item, Trajectory) else item.trajectories:
        try:
            for history in each.histories():
                _MESSAGES.validate_python(history.messages())
                _TOOLS.validate_python(history.tools or [])
        except (ValidationError, AttributeError) as error:  # a stored choice may lack its message's fields
            raise unusable(where, error) from error
        if not each.messages():
            raise RowError(f"{where} has a trajectory without messages.", "Delete it, or put its messages in.")
        scores = [each.judgement.score, *(vote.score for vote in each.judgement.votes)] if each.judgement else []
        if any(score is not None and not math.isfinite(score) for score in scores):
            raise RowError(f"{where} has a judge's score that is no number.", "Write null where there is no score.")
    return item


def unusable(where: str, error: Exception) -> RowError:
    """The error for a row that is not shaped as its format says, with the field."""
    text = problem(error) if isinstance(error, ValidationError) else str(error)
    text = error.message if isinstance(error, GavelError) else text
    return RowError(f"{where} cannot be judged: {text}", "Rows hold messages and tools in OpenAI's chat format.")


def as_message(value: Any, role: str) -> list[Message]:
    """A text as one message of `role`; a list of messages, or one message, as it is."""
    if isinstance(value, list):
        return cast(list[Message], value)
    return [cast(Message, value)] if isinstance(value, dict) else [{"role": role, "content": value}]
