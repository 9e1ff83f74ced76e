"""What a client and a server of the remote backend say to each other, as JSON.

    GET   /v1/models/{project}/{name}           KeptRun
    POST  /v1/models/{project}/{name}/jobs      Job -> JobState
    GET   /v1/models/{project}/{name}/jobs/{id} JobState, as server-sent events until it is done
    GET   …/jobs/{id}?now=1                     JobState
    GET   /v1/uploads/{sha256}                  Upload-Offset: bytes that are there
    PATCH /v1/uploads/{sha256}                  Upload-Offset, Upload-Length: the bytes from there on

A job is known by its id, a hash of what it is to do and of the step it starts from: sent again, it is the same job.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 2
"""Of the requests and answers here. A server answers no other one."""
PROTOCOL_HEADER, OFFSET_HEADER, LENGTH_HEADER = "Gavel-Protocol", "Upload-Offset", "Upload-Length"
URL_VARIABLE, KEY_VARIABLE = "GAVEL_BACKEND_URL", "GAVEL_BACKEND_KEY"
HEARTBEAT_SECONDS = 5.0
"""Between two events of a job in which nothing changes."""

Kind = Literal[
    "register", "prepare", "train", "train_sft", "log", "record", "pin", "delete_checkpoints", "export", "push"
]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Job(_Wire):
    """Something that a model is to do."""

    id: str = Field(min_length=8, max_length=100)
    kind: Kind
    writer: str
    """The client, as it named itself when it registered the model."""
    step: int | None = None
    """Training steps that the client knows of; the job is refused when there are others."""
    upload: str | None = None
    """SHA-256 of the file of groups."""
    arguments: dict[str, Any] = Field(default_factory=dict)


class SentAdapter(_Wire):
    """An adapter of the client's machine, which a run is to begin with or to be compared with.

    Its files are uploaded when the server asks for them.
    """

    named: str
    """As its user did."""
    directory: str
    """On the client's machine."""
    files: dict[str, str]
    """SHA-256 by name."""
    run: str | None = None
    step: int | None = None
    base_model: str | None = None


class ModelState(_Wire):
    """What a client keeps of a registered model."""

    step: int
    versions: int
    checkpoints: list[int]
    parameters: int = 0
    """Of the base model."""
    limits: str = ""
    """Of its endpoint."""


class KeptRun(_Wire):
    """A run that the server keeps, whether or not a client has registered it."""

    description: dict[str, Any]
    """Its model.json."""
    checkpoints: list[int]
    """Steps, in order."""


class Fault(_Wire):
    """An error, as it was raised on the server."""

    type: str
    message: str
    remedy: str = ""


class JobState(_Wire):
    id: str
    state: Literal["waiting", "running", "done", "failed"]
    seconds: float = 0.0
    """Since it was begun."""
    result: dict[str, Any] | None = None
    model: ModelState | None = None
    """After the job."""
    error: Fault | None = None


def job_id(kind: str, key: tuple[str, str], step: int | None, upload: str | None, arguments: Mapping[str, Any]) -> str:
    """The same for the same work from the same step."""
    parts = json.dumps([kind, *key, step, upload, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(parts.encode()).hexdigest()
