"""The environments of AgentGym: how each names an item, what its rewards mean, and how an action is written.

The servers say none of this. The facts are those of the published servers and clients; a server of no known kind is
spoken to with all names at once, and its reward is taken to be from 0 to 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

Form = Literal["action", "sql", "call", "reply"]
"""What the server reads: an action alone; SQL out of its fence; `Action: NAME with Action Input: {…}`; the whole
reply, in tags of its own."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One environment."""

    name: str
    index: tuple[str, ...]
    """Fields of `/reset` that name the item."""
    train: range = range(200)
    """Item ids that are trained on by default. Only maze and sqlgym tell how many they have."""
    held_out: range = range(200, 250)
    form: Form = "action"
    reset: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Further fields of `/reset`."""
    scored: bool = False
    """Whether the reward of an episode is the sum that steps tell as `score`, not the last step's."""
    percent: bool = False
    """Whether rewards are from -100 to 100."""
    until_done: bool = False
    """Whether any reward above 0 at the end is a success: it is 1 less a share of the steps that were taken."""
    environments: int | None = None
    """That the server holds at most; it gives one away twice beyond them."""
    words: str | None = None
    """Path that tells the words that are allowed."""

    def normalised(self, raw: float, done: bool) -> float:
        """The reward from 0 to 1."""
        if self.until_done:
            return float(done and raw > 0)
        return min(1.0, max(0.0, raw / 100 if self.percent else raw))

    def succeeded(self, raw: float, done: bool) -> bool:
        return self.normalised(raw, done) >= 1.0


_KINDS = (
    Kind("textcraft", ("data_idx",)),
    Kind("babyai", ("data_idx",), scored=True, until_done=True),
    Kind("alfworld", ("game",), reset={"world_type": "Text"}),
    Kind("sciworld", ("data_idx",), scored=True, percent=True),
    Kind("maze", ("game",), train=range(20), held_out=range(20, 26)),
    Kind("wordle", ("seed",), words="filtered_vocab"),
    Kind("webshop", ("session_id",)),
    Kind("sqlgym", ("item_id",), form="sql", train=range(9428), held_out=range(9428, 10962), environments=8),
    Kind("searchqa", ("id",), form="reply"),
    *(Kind(name, ("id",), form="call") for name in ("weather", "movie", "academia", "sheet", "todo")),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
OTHER = Kind("agentgym", ("data_idx", "game", "seed", "id", "item_id", "session_id"), reset={"world_type": "Text"})
"""An environment of no known kind. `id` names the item only where it does not name the environment."""

_GREETINGS = {"textcraft": "textcraft", "babyai": "babyai", "alfworld": "alfworld", "scienceworld": "sciworld"}
_INDEX_OWNERS = {"session_id": "webshop", "item_id": "sqlgym"}


def kind_of_path(path: str) -> Kind | None:
    """The kind that the address itself names: `http://host/maze`."""
    return KINDS.get(path.rstrip("/").rpartition("/")[2].casefold())


def kind_of_greeting(greeting: object) -> Kind | None:
    """The kind that `GET /` names: "This is environment TextCraft."."""
    if not isinstance(greeting, str) or not greeting.casefold().startswith("this is environment "):
        return None
    name = greeting.casefold().removeprefix("this is environment ").strip(" .")
    return KINDS.get(_GREETINGS.get(name, ""))


def kind_of_fields(fields: Sequence[str]) -> Kind | None:
    """The kind whose `/reset` alone has one of these fields."""
    return next((KINDS[owner] for name, owner in _INDEX_OWNERS.items() if name in fields), None)
