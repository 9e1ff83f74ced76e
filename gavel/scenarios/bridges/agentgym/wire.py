"""What AgentGym's environment servers answer, as values: two dialects, and the forms that each was seen to take.

    A   /create -> {"id": 3, …}    /reset -> {"observation": …}       /step -> {"observation", "reward", "done"}
    B   /create -> 3               /reset -> "text" or ["text", null]  /step -> the same, or {"state", "reward", "done"}

An error is `{"error": …}` with status 200 (A) or a status (B); one that is null or empty is none. What has none of
these forms raises `WireError`: a reward that is missing is never taken for 0.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from gavel.base.errors import GavelError

Dialect = Literal["a", "b"]
SessionId = int | str
_EXCERPT = 200
"""Characters of an answer that an error shows."""


class WireError(GavelError):
    """A server's answer has no form that is known."""


class RefusedError(GavelError):
    """A server answered a well-formed request with an error of its own."""


@dataclass(frozen=True, slots=True)
class Created:
    """An environment on a server."""

    id: SessionId
    dialect: Dialect

    @property
    def field(self) -> str:
        """What requests call it."""
        return "id" if self.dialect == "a" else "env_idx"


@dataclass(frozen=True, slots=True)
class Stepped:
    """What followed an action."""

    observation: str
    reward: float
    """As the server gives it."""
    done: bool
    score: float | None = None
    """The sum so far, where the server tells it beside the step's reward."""
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The whole answer, where it is an object."""


def created(answer: Any) -> Created:
    """Raises `RefusedError`, `WireError`."""
    match answer:
        case {"error": error} if error:
            raise RefusedError(f"/create: {_told(error)}")
        case {"id": int() | str() as name} if not isinstance(name, bool):
            return Created(name, "a")
        case {"env_idx": int() | str() as name} if not isinstance(name, bool):
            return Created(name, "b")
        case int() | str() if not isinstance(answer, bool) and answer != "":
            return Created(answer, "b")
        case _:
            raise WireError(f"/create answered {_excerpt(answer)}, which names no environment")


def first_observation(answer: Any) -> str | None:
    """The text of `/reset` or `/observation`; None where it has none, and `/observation` is to be asked.

    A task's description and the available actions, which some environments tell beside it, are put into the text.
    Raises `RefusedError`, `WireError`.
    """
    match answer:
        case {"error": error} if error:
            raise RefusedError(_told(error))
        case dict():
            fields = cast("dict[str, Any]", answer)
            if not ("observation" in fields or "state" in fields):
                raise WireError(f"it answered {_excerpt(fields)}, without an observation")
            parts = [_text(fields.get("task_description")), _observation(fields)]
            if actions := texts(fields.get("available_actions")):
                parts.append(f"Available actions: {', '.join(actions)}")
            return "\n".join(filter(None, parts)) or None
        case [first, *_]:
            return _text(first) or None
        case str() | None:
            return answer or None
        case _:
            raise WireError(f"it answered {_excerpt(answer)}, which is no observation")


def stepped(answer: Any) -> Stepped:
    """Raises `RefusedError`, `WireError`."""
    match answer:
        case {"error": error} if error:
            raise RefusedError(_told(error))
        case {"reward": reward, "done": done}:
            fields = cast("dict[str, Any]", answer)
        case [observation, reward, done, *_]:
            fields = {"observation": observation}
        case _:
            raise WireError(f"/step answered {_excerpt(answer)}, without reward and done")
    if not isinstance(done, bool | int):
        raise WireError(f"/step answered done={_excerpt(done)}, which is neither true nor false")
    if not ("observation" in fields or "state" in fields):
        raise WireError(f"/step answered {_excerpt(fields)}, without an observation")
    observed = _observation(fields)
    if actions := texts(fields.get("available_actions")):
        observed = f"{observed}\nAvailable actions: {', '.join(actions)}"
    score = None if fields.get("score") is None else _number("score", fields["score"])
    return Stepped(observed, _number("reward", reward), bool(done), score, fields)


def _observation(fields: Mapping[str, Any]) -> str:
    return _text(fields["observation"] if "observation" in fields else fields["state"])


def _text(value: Any) -> str:
    """A text as it is, nothing for null, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def texts(value: Any) -> list[str]:
    """The texts of a list; none for what is no list."""
    return [_text(each) for each in cast("list[Any]", value)] if isinstance(value, list) else []


def _number(name: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:  # an integer above 10³⁰⁸
        number = math.nan
    if not math.isfinite(number):
        raise WireError(f"/step answered {name}={_excerpt(value)}, which is no finite number")
    return number


def _told(error: Any) -> str:
    return _text(error)[:_EXCERPT]


def _excerpt(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"
