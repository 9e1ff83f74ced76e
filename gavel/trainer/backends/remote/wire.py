"""Messages between client and server of the remote backend, as JSON.

    GET  /v1/models/{project}/{name}                   its model.json and `checkpoints`
    POST /v1/models/{project}/{name}/jobs              Job -> JobState
    GET  /v1/models/{project}/{name}/jobs/{id}?wait=5  JobState, when it ends or after so many seconds

A job is known by its id, a hash of what it is to do and of the step it starts from: sent again, it is the same job.
The body is the job in a line, and after it its groups: a line of JSON each, in a frame of zstd.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Literal, NoReturn, Self

import zstandard
from pydantic import BaseModel, ConfigDict, Field

from gavel.base.errors import GavelError
from gavel.base.network import server_address
from gavel.scenarios.group import TrajectoryGroup, from_row, to_line

PROTOCOL = 8
"""Protocol version of these requests and replies. A server rejects any other."""
PROTOCOL_HEADER = "Gavel-Protocol"
URL_VARIABLE, KEY_VARIABLE = "GAVEL_BACKEND_URL", "GAVEL_BACKEND_KEY"
WAIT_SECONDS = 5.0
"""Max seconds that a server waits for a job to end before it replies."""

Kind = Literal[
    "register", "prepare", "train", "train_sft", "log", "record", "pin", "delete_checkpoints", "export", "push"
]
"""Methods of a `Backend`, whose arguments a job has."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Job(_Wire):
    """A task for a model."""

    id: str = Field(min_length=8, max_length=100)
    kind: Kind
    writer: str
    """The client, as it named itself when it registered the model."""
    step: int | None = None
    """Training steps that the client knows of; the job is refused when there are others."""
    groups: str = ""
    """SHA-256 of what comes with it; empty without groups."""
    arguments: dict[str, Any] = Field(default_factory=dict)


def pack_groups(groups: list[TrajectoryGroup]) -> bytes:
    """Raises `PendingGroupError` for a group with rollouts to run."""
    for group in groups:
        len(group)  # raises it
    return zstandard.compress("\n".join(map(to_line, groups)).encode())


def unpack_groups(job: Job, content: bytes) -> list[TrajectoryGroup]:
    """Raises `RemoteError` for content that is not what the job announces."""
    if hashlib.sha256(content).hexdigest() != job.groups:
        raise RemoteError("the groups arrived with another SHA-256 than announced", "Call again.")
    return [from_row(json.loads(line)) for line in zstandard.decompress(content).split(b"\n") if line]


class ModelState(_Wire):
    """Client-side state of a registered model."""

    step: int
    versions: int
    checkpoints: list[int]
    parameters: int = 0
    """Parameters of the base model."""
    limits: str = ""
    """Context and longest reply of its endpoint, in a sentence."""


class Fault(_Wire):
    """An error, as it was raised on the server."""

    type: str
    message: str
    remedy: str = ""

    @classmethod
    def of(cls, error: GavelError) -> Self:
        return cls(type=type(error).__name__, message=error.message, remedy=error.remedy)

    def throw(self) -> NoReturn:
        """Raises the error as the class of its name; as `RemoteError` where this process knows none, or none so
        simple."""
        kind = next((each for each in _subclasses(GavelError) if each.__name__ == self.type), RemoteError)
        raise (kind if kind.__init__ is GavelError.__init__ else RemoteError)(self.message, self.remedy)


class JobState(_Wire):
    id: str
    state: Literal["running", "done", "failed"]
    result: dict[str, Any] = Field(default_factory=dict)
    model: ModelState | None = None
    """The model's state after the job."""
    error: Fault | None = None


class RemoteBackendError(GavelError):
    """The server of a remote backend cannot be reached, or answers what no such server answers."""


def checked_url(given: str) -> str:
    """The address without a slash at its end. Raises `RemoteBackendError`, which tells no password."""
    try:
        return server_address(given)
    except ValueError as error:
        raise RemoteBackendError(str(error), f"Give one, or set {URL_VARIABLE}: http://127.0.0.1:8090") from error


def checked_key(given: str) -> str:
    """The key as a header holds it. Raises `RemoteBackendError`, which does not tell the key."""
    key = given.strip()
    if not key:
        raise RemoteBackendError("the backend's key is not given", f"Give it, or set {KEY_VARIABLE}.")
    if not all("!" <= character <= "~" for character in key):
        raise RemoteBackendError(
            "the backend's key has characters that no HTTP header holds",
            "Make it of letters, digits and signs of ASCII, without spaces: openssl rand -hex 24",
        )
    return key


class RemoteError(GavelError):
    """The server of a remote backend refuses a request, or something failed there."""


class WriterError(RemoteError):
    """Another client has registered the model since."""


def _subclasses(kind: type[GavelError]) -> Iterator[type[GavelError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)
