"""The service's settings as plain data: one file (`gavel.toml`), the environment, or the command line.

    port = 8080                                  GAVEL_SERVICE_PORT=8080           --port 8080
    [judge]
    models = "openai/gpt-5-mini"                 GAVEL_SERVICE_JUDGE__MODELS=…     --judge openai/gpt-5-mini
    [limits]
    members = 64                                 GAVEL_SERVICE_LIMITS__MEMBERS=64
    [keys.trainer]
    env = "TRAINER_KEY"                          GAVEL_SERVICE_KEYS__TRAINER__ENV=TRAINER_KEY

Each field is documented once, below it.
"""

import os
import re
from typing import Annotated, Self, cast

from pydantic import BaseModel, Field, StringConstraints, field_validator, model_validator

from gavel.judge.config import JudgeConfig, read_text_option
from gavel.judge.panel.modes import ModeName
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.schemas import (
    HASH_PREFIX,
    TOKEN_PREFIX,
    KeyScope,
    SetInteger,
    SetNumber,
    StrictModel,
    token_hash,
)

DATABASE_VARIABLE = "GAVEL_DATABASE_URL"
ENVIRONMENT_PREFIX = "GAVEL_SERVICE_"
FILE_NAME = "gavel.toml"
KeyName = Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,100}$")]
_HASH = re.compile(re.escape(HASH_PREFIX) + "[0-9a-f]{64}")
_VARIABLE = re.compile(f"(?!{TOKEN_PREFIX})[A-Za-z_][A-Za-z0-9_]*")
_SHARED = {
    "judge": ("concurrency", "requests_per_minute", "tokens_per_minute", "max_tokens", "max_cost_usd"),
    "limits": ("concurrent_groups", "connections"),
}
"""Limits of all processes together, by table."""
_MIN_TOKEN = 24
"""Min characters of a key in the environment: a shorter one can be guessed."""


class ServiceLimits(StrictModel):
    """How large a request may be, how many groups at once, and how long things may take."""

    body_bytes: SetInteger = Field(default=16 * 2**20, ge=1024)
    """Bytes of a request's body."""
    members: SetInteger = Field(default=64, ge=1)
    """Members of a group."""
    orders: SetInteger = Field(default=16, ge=1)
    """Orders that a request may ask for."""
    concurrent_groups: SetInteger = Field(default=64, ge=1)
    """Groups that are judged at once; others wait in the database."""
    waiting_groups: SetInteger = Field(default=10_000, ge=1)
    """Groups that may wait in the database; further requests are refused (429)."""
    open_groups: SetInteger = Field(default=10_000, ge=1)
    """Groups that may wait for their members; further ones are refused (429)."""
    deadline_seconds: SetNumber = Field(default=600.0, gt=0)
    """Seconds from its first member until a group is judged as it is, where the members name no other deadline."""
    connections: SetInteger = Field(default=10_000, ge=1)
    """Connections at once; further ones are answered with 503."""
    body_seconds: SetNumber = Field(default=30.0, gt=0)
    """Seconds in which a request's body must have arrived."""
    wait_seconds: SetNumber = Field(default=900.0, gt=0)
    """Seconds that a request is held until its judgement is finished; then it is answered with 202 and the id."""
    lease_seconds: SetNumber = Field(default=30.0, ge=1)
    """Seconds after which the work of a process that died is taken over by another one."""
    leases: SetInteger = Field(default=5, ge=1)
    """How often a group is begun: one whose judging has ended so many processes is not tried again."""
    shutdown_seconds: SetNumber = Field(default=20.0, ge=0)
    """Seconds that a stopping service waits for the groups that it is judging; others are left to the next process."""


class KeyConfig(KeyScope):
    """An API key of the settings, which name its hash or the environment variable that has it, and never the key."""

    hash: str | None = None
    """Hash of the key, as `gavel keys create --print-hash` shows it."""
    env: str | None = None
    """Environment variable that has the key."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.hash is None) == (self.env is None):
            raise ValueError("a key has a hash or an env, and not both")
        if self.hash is not None and not _HASH.fullmatch(self.hash):
            raise ValueError(
                "the hash of a key is sha256: and 64 digits, as `gavel keys create NAME --print-hash` prints it; "
                "a key itself does not belong into settings"
            )
        if self.env is not None and not _VARIABLE.fullmatch(self.env):
            raise ValueError("the env of a key is the name of an environment variable, such as TRAINER_KEY")
        return self

    def token_hash(self, name: str) -> str:
        """The SHA-256 of the key. Raises `ServiceError` if it is not in the environment."""
        if self.env is None:
            return (self.hash or "").removeprefix(HASH_PREFIX)
        token = os.environ.get(self.env, "").strip()
        if len(token) < _MIN_TOKEN:
            what = f"has fewer than {_MIN_TOKEN} characters" if token else "is not set"
            raise ServiceError(
                f"the environment variable {self.env}, which has the API key {name}, {what}.",
                f"gavel keys create {name} --print-hash prints a key that can be its value.",
            )
        return token_hash(token)


class ServiceConfig(BaseModel):
    """The auto-reward service: who judges, where it listens, and what it keeps."""

    model_config = StrictModel.model_config

    host: str = "127.0.0.1"
    """Address to listen on. Others than loopback need API keys."""
    port: SetInteger = Field(default=8080, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    processes: SetInteger = Field(default=1, ge=1, le=64)
    """Processes that serve on the port, for as many cores. What the judge may do (concurrency, budgets, rates) and the
    limits of concurrent groups and connections are of all of them together: each gets an equal part."""
    database: str = "gavel_service.sqlite"
    """Path of an SQLite file, or postgresql://user:password@host/name. GAVEL_DATABASE_URL, where it is set, wins over
    the file."""
    judge: JudgeConfig = JudgeConfig()
    """The judge of requests that name none."""
    judges: list[str] = []
    """Further judge models that a request may name; all others are refused."""
    modes: list[ModeName] = ["groupwise", "pairwise"]
    """Modes that a request may name, besides the judge's own."""
    rubrics: dict[str, str] = {}
    """Rubrics that a request may name as its preset: a text, or @FILE."""
    group_size: SetInteger | None = Field(default=None, ge=1)
    """Members of a group, for requests that cannot say it: slime's, and NeMo Gym's /verify."""
    limits: ServiceLimits = ServiceLimits()
    keys: dict[KeyName, KeyConfig] = {}
    """API keys by name, besides those of `gavel keys create`."""
    share_replies: bool = False
    """Let API keys share the judge models' stored replies: the same group costs nothing a second time, whichever key
    asks, and its cost shows a key that another one has asked."""
    otel: bool = False
    """Send OpenTelemetry traces over OTLP/HTTP, to where OTEL_EXPORTER_OTLP_ENDPOINT and its kind say (extra otel)."""
    retention_days: SetNumber | None = Field(default=None, gt=0)
    """Days after which judgements are deleted with their transcripts and replies. Default: they are kept."""

    @field_validator("keys", mode="before")
    @classmethod
    def _tables(cls, keys: object) -> object:
        """Describes a text in place of a table without quoting it, since it may be a key."""
        tables = cast("dict[str, object]", keys).values() if isinstance(keys, dict) else ()
        if not all(isinstance(table, dict | KeyConfig) for table in tables):
            raise ValueError("each key is a table with a hash or an env; a key itself does not belong into settings")
        return cast("object", keys)

    @model_validator(mode="after")
    def _enough_for_each(self) -> Self:
        for table, names in _SHARED.items():
            for name in names:
                if isinstance(most := getattr(getattr(self, table), name), int) and most < self.processes:
                    why = f"too little for {self.processes} processes that share it"
                    raise ValueError(f"{table}.{name} is {most:g}, {why}")
        return self

    def share(self) -> Self:
        """The settings of one of the processes, with its part of the shared limits."""
        parts: dict[str, BaseModel] = {}
        for table, names in _SHARED.items():
            whole: BaseModel = getattr(self, table)
            amounts = {name: most for name in names if (most := getattr(whole, name)) is not None}
            part = {n: x // self.processes if isinstance(x, int) else x / self.processes for n, x in amounts.items()}
            parts[table] = whole.model_copy(update=part)
        return self.model_copy(update=parts)

    def read_rubrics(self) -> dict[str, str]:
        """The preset rubrics as texts. Raises `JudgeError` for an unreadable file."""
        return {name: read_text_option(text, f"rubric {name}") or "" for name, text in self.rubrics.items()}
