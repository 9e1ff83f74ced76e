"""What stands behind `openenv:`: a server's URL, and options in its query.

openenv:http://localhost:8000?tasks=200&held_out=50&seed=1&turns=12
"""

import os
from typing import Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gavel.scenarios.scenario import ScenarioError

SEED_BLOCK = 1_000_000
"""Seeds of one list of tasks: the first half is trained on, the second held out."""


class Options(BaseModel):
    """The query of an address."""

    model_config = ConfigDict(extra="forbid")

    tasks: int = Field(default=200, ge=1, le=SEED_BLOCK // 2)
    """Tasks to train on, at most: seeds, or tasks of the server where it lists some."""
    held_out: int = Field(default=50, ge=0, le=SEED_BLOCK // 2)
    """Tasks held out, at most."""
    seed: int = Field(default=0, ge=0, lt=2**31 // SEED_BLOCK)
    """Another number gives other seeds, none of them in both lists of any other."""
    turns: int | None = Field(default=None, ge=1)
    """Turns of the agent, at most; by default what the server says, or 20."""
    style: Literal["auto", "tools", "text"] = "auto"
    """tools: the agent calls tools. text: its words are the action, for an action of one text field. auto: text where
    the server has no tools and its action is one text field."""
    show: str | None = None
    """Fields of an observation that the agent is shown, separated by commas; by default all that say something."""
    success: float | None = None
    """A sum of rewards from which an episode counts as a success."""
    low: float | None = None
    high: float | None = None
    """Range of the sum of rewards: `environment_reward` is then normalised to 0..1."""
    seconds: float = Field(default=60.0, gt=0)
    """That one answer of the server may take."""
    wait: float = Field(default=1800.0, gt=0)
    """Seconds that an episode may wait for a free session."""
    sessions: int = Field(default=256, ge=1)
    """Open at a time; fewer where the server says so."""
    token: str | None = None
    """Environment variable whose value is sent as a bearer token."""

    @model_validator(mode="after")
    def _range(self) -> "Options":
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high belong together")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError("low must be below high")
        return self

    @property
    def fields(self) -> list[str] | None:
        return None if self.show is None else [name.strip() for name in self.show.split(",") if name.strip()]

    def headers(self) -> dict[str, str]:
        """Raises `ScenarioError` when the variable that `token` names is not set."""
        if self.token is None:
            return {}
        if not (value := os.environ.get(self.token)):
            raise ScenarioError(
                f"token={self.token} names an environment variable that is not set", f"export {self.token}=…"
            )
        return {"Authorization": f"Bearer {value}"}


def parsed(address: str) -> tuple[str, Options]:
    """The server's URL, without a slash at its end, and the options. Raises `ScenarioError`."""
    parts = urlsplit(address)
    schemes = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ScenarioError(
            f"openenv:{address} names no server", "Write its URL: openenv:http://localhost:8000?tasks=200&seed=1"
        )
    path = parts.path.rstrip("/").removesuffix("/ws")
    given = parse_qsl(parts.query, keep_blank_values=True)
    try:
        options = Options.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "options"
        raise ScenarioError(
            f"openenv:{address}: {name}: {first['msg']}", f"Options are {', '.join(Options.model_fields)}."
        ) from error
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, "", "")), options
