"""Parses the responses of AgentGym's environment servers: two dialects, and their observed variants.

    A   /create -> {"id": 3, …}    /reset -> {"observation": …}       /step -> {"observation", "reward", "done"}
    B   /create -> 3               /reset -> "text" or ["text", null]  /step -> the same, or {"state", "reward", "done"}

An error is `{"error": …}` with status 200 (A) or an error status (B); a null or empty one is none. Any other form
raises `WireError`: a missing reward is never read as 0.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from pydantic import BaseModel, Field, JsonValue

from gavel.base.errors import GavelError
from gavel.base.network import server_address
from gavel.scenarios.packaged_world import parsed
from gavel.scenarios.scenario import ScenarioError

_EXCERPT = 200
"""Max characters of a response in an error."""


class AgentGymError(GavelError):
    """An environment server is lost, or speaks another protocol."""


class WireError(AgentGymError):
    """A server's response has an unknown form."""


class RefusedError(GavelError):
    """A server answered a well-formed request with its own error."""


class Created(NamedTuple):
    """An environment on a server."""

    id: int | str
    field: Literal["id", "env_idx"]
    """The name of its id in requests, by the server's dialect."""


class Stepped(NamedTuple):
    """The result of an action."""

    observation: str
    reward: float
    """The server's reward."""
    done: bool
    score: float | None = None
    """The sum so far, if the server reports it beside the step's reward."""


def parse_created(answer: Any) -> Created:
    """Parses the response to `/create`. Raises `RefusedError`, `WireError`."""
    match _accepted(answer):
        case {"id": int() | str() as name} if not isinstance(name, bool):
            return Created(name, "id")
        case {"env_idx": int() | str() as name} | (int() | str() as name) if not isinstance(name, bool) and name != "":
            return Created(name, "env_idx")
        case _:
            raise WireError(f"/create answered {_excerpt(answer)}, which names no environment")


def first_observation(answer: Any) -> str | None:
    """The text of `/reset` or `/observation`; None if it has none, and `/observation` must be requested.

    A task's description and the available actions, which some environments report separately, are added to the text.
    Raises `RefusedError`, `WireError`.
    """
    match _accepted(answer):
        case {"observation": _} | {"state": _}:
            described = [_text(answer.get("task_description")), _observed(answer)]
            return "\n".join(filter(None, described)) or None
        case [first, *_]:
            return _text(first) or None
        case str() | None:
            return answer or None
        case _:
            raise WireError(f"it answered {_excerpt(answer)}, which is no observation")


def parse_stepped(answer: Any) -> Stepped:
    """Parses the response to `/step`. Raises `RefusedError`, `WireError`."""
    match _accepted(answer):
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
    score = None if fields.get("score") is None else _number("score", fields["score"])
    return Stepped(_observed(fields), _number("reward", reward), bool(done), score)


def _accepted(answer: Any) -> Any:
    """The answer. Raises `RefusedError` for an error."""
    match answer:
        case {"error": error} if error:
            raise RefusedError(_text(error)[:_EXCERPT])
        case _:
            return answer


def _observed(fields: Mapping[str, Any]) -> str:
    text = _text(fields["observation"] if "observation" in fields else fields["state"])
    actions = texts(fields.get("available_actions"))
    return "\n".join(filter(None, [text, f"Available actions: {', '.join(actions)}" if actions else ""]))


def _text(value: Any) -> str:
    """A text unchanged, an empty text for null, anything else as JSON."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def texts(value: Any) -> list[str]:
    """The texts of a list; empty for anything else."""
    return [_text(each) for each in cast("list[Any]", value)] if isinstance(value, list) else []


def _number(name: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:  # an integer above 10³⁰⁸
        number = math.nan
    if not math.isfinite(number):
        raise WireError(f"/step answered {name}={_excerpt(value)}, which is no finite number")
    return number


def _excerpt(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


Form = Literal["action", "sql", "call", "reply"]
"""The form of an action that the server parses: the bare action; SQL without its fence; `Action: NAME with Action
Input: {…}`; the whole reply, with its own tags."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The specification of one kind of environment."""

    name: str
    index: tuple[str, ...]
    """Fields of `/reset` that identify the item."""
    train: range = range(200)
    """Default training items. Only maze and sqlgym report their number of items."""
    held_out: range = range(200, 250)
    form: Form = "action"
    reset: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Additional fields of `/reset`."""
    scored: bool = False
    """Whether an episode's reward is the sum that steps report as `score`, not the last step's."""
    percent: bool = False
    """Whether rewards range from -100 to 100."""
    until_done: bool = False
    """Whether any final reward above 0 is a success: it is 1 minus a share of the steps taken."""
    rubric: str | None = None
    """The rubric, if the server has one, as those of `gavel serve-env` do."""
    words: str | None = None
    """Path that lists the allowed words."""

    def normalised(self, raw: float, done: bool) -> float:
        """The reward, scaled to 0..1; 1 is a success."""
        if self.until_done:
            return float(done and raw > 0)
        return min(1.0, max(0.0, raw / 100 if self.percent else raw))


_KINDS = (
    Kind("textcraft", ("data_idx",)),
    Kind("babyai", ("data_idx",), scored=True, until_done=True),
    Kind("alfworld", ("game",), reset={"world_type": "Text"}),
    Kind("sciworld", ("data_idx",), scored=True, percent=True),
    Kind("maze", ("game",), train=range(20), held_out=range(20, 26)),
    Kind("wordle", ("seed",), words="filtered_vocab"),
    Kind("webshop", ("session_id",)),
    Kind("sqlgym", ("item_id",), form="sql", train=range(9428), held_out=range(9428, 10962)),
    Kind("searchqa", ("id",), form="reply"),
    *(Kind(name, ("id",), form="call") for name in ("weather", "movie", "academia", "sheet", "todo")),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
OTHER = Kind("agentgym", ("data_idx", "game", "seed", "id", "item_id", "session_id"), reset={"world_type": "Text"})
"""An unknown environment. `id` identifies the item only if it does not identify the environment."""


def kind_of(path: str, greeting: object) -> Kind:
    """The kind named in the address, `http://host/maze`, or in the response to `GET /`; else another one."""
    named = path.rstrip("/").rpartition("/")[2].casefold()
    told = re.fullmatch(r"(?i)this is environment (\w+)[ .]*", greeting) if isinstance(greeting, str) else None
    greeted = told[1].casefold().replace("scienceworld", "sciworld") if told else ""
    return KINDS.get(named) or KINDS.get(greeted) or OTHER


_EXAMPLE = "Write agentgym:http://127.0.0.1:36001?tasks=200&held_out=50"
_ITEMS = r"^\d{1,6}(-\d{1,6})?$"


class Options(BaseModel):
    """The query of an address."""

    tasks: str | None = Field(default=None, pattern=_ITEMS)
    """Training items: a number (`200`), or a range (`100-299`). None: the kind's default."""
    held_out: str | None = Field(default=None, pattern=_ITEMS)
    """Evaluation items; a number: the next ones after the training items."""
    turns: int = Field(default=30, ge=1, lt=10_000)
    timeout: float = Field(default=60.0, gt=0, le=3600)
    """Timeout of one request, in seconds."""

    def splits(self, train: range, held_out: range) -> tuple[range, range]:
        """The items of both splits, by default the given ones."""
        trained = train if self.tasks is None else _items(self.tasks, 0)
        return trained, held_out if self.held_out is None else _items(self.held_out, trained.stop)


def _items(value: str, start: int) -> range:
    """Parses item ids: `200` = 200 from `start` on, `100-149` = these 50."""
    first, dash, last = value.partition("-")
    return range(int(first), int(last) + 1) if dash else range(start, start + int(first))


def parse(address: str) -> tuple[str, str | None, Options]:
    """The server's URL without a trailing slash, the kind if it is named, and the options.

    Raises `ScenarioError`.
    """
    head, plus, rest = address.partition("+")
    kind = head if plus and "/" not in head and ":" not in head else None
    given, options, _ = parsed("agentgym", address if kind is None else rest, Options, all_known=True)
    try:
        url = server_address(given)
    except ValueError as error:
        raise ScenarioError(f"agentgym: {error}.", _EXAMPLE) from error
    if kind is not None and kind not in KINDS:
        raise ScenarioError(f"AgentGym has no environment {kind!r} that is known.", f"Known: {', '.join(KINDS)}.")
    if options.tasks is not None and options.held_out is None:
        raise ScenarioError("tasks= is without held_out=, the items that are kept for evaluation.", _EXAMPLE)
    return url, kind, options
