"""The address of an environment server: `agentgym:[KIND+]URL[?option=value&…]`.

agentgym:http://127.0.0.1:36001?tasks=200&held_out=50
agentgym:webshop+http://10.0.0.7:36003?tasks=200-999&held_out=0-199&style=tools
"""

from dataclasses import dataclass, replace
from typing import Literal, cast, get_args
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from gavel.scenarios.bridges.agentgym.kinds import KINDS
from gavel.scenarios.bridges.agentgym.wire import Dialect
from gavel.scenarios.scenario import ScenarioError

Style = Literal["react", "tools"]
_EXAMPLE = "Write agentgym:http://127.0.0.1:36001?tasks=200&held_out=50"
_OPTIONS = ("tasks", "held_out", "style", "turns", "concurrency", "timeout", "dialect")
MOST_ITEMS = 1_000_000


@dataclass(frozen=True, slots=True)
class Address:
    """What an address says."""

    url: str
    """Without a slash at its end, and without options."""
    kind: str | None = None
    """None: the server is asked."""
    tasks: range | None = None
    """Item ids that are trained on. None: those of the kind."""
    held_out: range | int | None = None
    """Item ids that are kept for evaluation; a number: the next ones after those that are trained on."""
    style: Style = "react"
    turns: int = 30
    concurrency: int = 64
    """Requests at once."""
    timeout: float = 60.0
    """Seconds that one request may take."""
    dialect: Dialect | None = None
    """None: the answer to `/create` tells it."""

    def splits(self, train: range, held_out: range) -> tuple[range, range]:
        """The items of both splits; these where the address names none."""
        trained = self.tasks or train
        match self.held_out:
            case None:
                return trained, held_out
            case int() as count:
                return trained, range(trained.stop, trained.stop + count)
            case items:
                return trained, items


def parse(address: str) -> Address:
    """Raises `ScenarioError`."""
    head, plus, rest = address.partition("+")
    kind = head if plus and "/" not in head and ":" not in head else None
    given = rest if kind is not None else address
    try:
        parts = urlsplit(given)
        has_host = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        has_host = False
        parts = urlsplit("")
    if not has_host:
        raise ScenarioError(f"{given!r} is no address of an AgentGym server.", _EXAMPLE)
    if kind is not None and kind not in KINDS:
        raise ScenarioError(f"AgentGym has no environment {kind!r} that is known.", f"Known: {', '.join(KINDS)}.")
    found = Address(urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), kind)
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        found = _with(found, name, value)
    if found.tasks is not None and found.held_out is None:
        raise ScenarioError("tasks= is without held_out=, the items that are kept for evaluation.", _EXAMPLE)
    return found


def _with(address: Address, name: str, value: str) -> Address:
    match name:
        case "tasks":
            return replace(address, tasks=_items(name, value))
        case "held_out":
            items = _items(name, value)
            return replace(address, held_out=items if "-" in value else len(items))
        case "style" if value in get_args(Style):
            return replace(address, style=cast(Style, value))
        case "dialect" if value in get_args(Dialect):
            return replace(address, dialect=cast(Dialect, value))
        case "turns" | "concurrency" if value.isdecimal() and 0 < int(value) < 10_000:
            return replace(address, **{name: int(value)})
        case "timeout" if _seconds(value):
            return replace(address, timeout=_seconds(value))
        case _ if name not in _OPTIONS:
            raise ScenarioError(
                f"an AgentGym address has no option {name!r}.", f"Its options are {', '.join(_OPTIONS)}."
            )
        case _:
            ways = {"style": "react or tools", "dialect": "a or b"}.get(name, "a number above 0")
            raise ScenarioError(f"{name}={value} is none that an AgentGym address takes.", f"Write {name}={ways}.")


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds <= 3600 else 0.0


def _items(name: str, value: str) -> range:
    """`200` = the first 200, `100-149` = these 50."""
    first, dash, last = value.partition("-")
    if first.isdecimal() and (not dash or last.isdecimal()) and len(value) < 20:
        items = range(int(first), int(last) + 1) if dash else range(int(first))
        if 0 < len(items) <= MOST_ITEMS:
            return items
    raise ScenarioError(f"{name}={value} names no items.", f"Write {name}=200 (how many) or {name}=100-149 (which).")
