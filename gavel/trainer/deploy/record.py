"""The journal of one deployment: `deployments/<id>.json` in the run directory.

    record = open_record(run, host="together", address="together", adapter=facts, options={})
    ids = await record.once("model", find=…, make=…)

A stage is written before the host is asked to create something and again with the ids that it gave. A process that was
killed in between finds the stage begun, looks the thing up by its deterministic name, and creates it only when it is
not there. Files are replaced atomically. No key is ever written: a record holds the name of its variable.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from gavel.base.files import write_atomically
from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.errors import DeployError

DEPLOYMENTS = "deployments"
FORMAT_VERSION = 1
State = Literal["deploying", "deployed", "undeploying", "undeployed"]
Ids = dict[str, Any]


@dataclass(slots=True)
class DeploymentRecord:
    """What is known of one deployment; every change is on disk when the call returns."""

    path: Path
    host: str
    address: str
    """What `open_host` was given, such as vllm:http://10.0.0.2:8000."""
    options: dict[str, Any]
    """Of the host, without secrets; the same are used to undeploy."""
    project: str
    model: str
    step: int
    base_model: str
    sha256: str
    """Of the adapter's weights."""
    state: State = "deploying"
    stages: dict[str, Ids] = field(default_factory=dict[str, Ids])
    """By name: what the host gave (`done` true), or what it is being asked for (`done` false)."""
    deployed: Ids = field(default_factory=Ids)
    """base_url, model_id and key_variable once the host serves."""
    smoke_test: str = ""
    """What it found, in a sentence; empty before."""
    begun: float = field(default_factory=time.time)

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def remote_name(self) -> str:
        """The name of whatever this deployment creates: the same at every attempt, at most 63 of [a-z0-9-]."""
        words = f"{self.project}-{self.model}".lower()
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in words).strip("-")
        plain = "-".join(filter(None, plain.split("-")))[:30].rstrip("-")
        digest = hashlib.sha256(json.dumps([self.project, self.model, self.step, self.sha256]).encode()).hexdigest()
        return f"gavel-{plain}-s{self.step}-{digest[:10]}"

    def done(self, stage: str) -> Ids | None:
        """What the host gave at this stage; None when it is not finished."""
        found = self.stages.get(stage)
        return {key: value for key, value in found.items() if key != "done"} if found and found["done"] else None

    def begun_stage(self, stage: str) -> bool:
        """Whether the host may have been asked for this stage by a process that was killed."""
        return stage in self.stages and not self.stages[stage]["done"]

    def begin(self, stage: str, /, **ids: Any) -> None:
        """Writes what is about to be asked for."""
        self.stages[stage] = {"done": False, **ids}
        self.save()

    def finish(self, stage: str, /, **ids: Any) -> Ids:
        """Writes what the host gave."""
        self.stages[stage] = {**ids, "done": True}
        self.save()
        return dict(ids)

    def forget(self, *stages: str) -> None:
        """Removes stages whose things are gone from the host."""
        for stage in stages:
            self.stages.pop(stage, None)
        self.save()

    async def once(
        self, stage: str, *, find: Callable[[], Awaitable[Ids | None]], make: Callable[[], Awaitable[Ids]]
    ) -> Ids:
        """The ids of a stage: those recorded, else those of what `find` finds by its name, else of what `make` makes.

        `find` is always asked before `make`, so that nothing is made twice, whatever happened to the record.
        """
        known = self.done(stage)
        if known is not None:
            return known
        self.begin(stage)
        ids = await find()
        return self.finish(stage, **(await make() if ids is None else ids))

    def save(self) -> None:
        """Raises `DeployError` when the record cannot be written: then nothing must be created."""
        values = {name: getattr(self, name) for name in _FIELDS}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(
                self.path, json.dumps({"format_version": FORMAT_VERSION, **values}, indent=1), durable=True
            )
        except OSError as error:
            raise DeployError(
                f"the record {self.path} cannot be written: {error.strerror}",
                "Make room, or make the run directory writable; nothing more was asked of the host.",
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Raises `DeployError` while another process works on this deployment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                raise DeployError(f"another process is working on the deployment {self.id}", "Wait for it.") from error
            yield
        finally:
            os.close(lock)


_FIELDS = tuple(name for name in DeploymentRecord.__slots__ if name != "path")  # type: ignore[attr-defined]


def open_record(
    run: Path, *, host: str, address: str, adapter: AdapterFacts, options: Mapping[str, Any]
) -> DeploymentRecord:
    """The record of this adapter at this address: the one that is there, or a new one, not yet saved.

    Other options do not make another deployment: what failed for a wrong one goes on with the right one. A record that
    was undeployed begins anew. Raises `DeployError` for a record that cannot be read.
    """
    digest = hashlib.sha256(json.dumps([address, adapter.sha256]).encode()).hexdigest()
    path = run / DEPLOYMENTS / f"{host}-{adapter.step:06d}-{digest[:8]}.json"
    if path.is_file():
        known = read_record(path)
        if known.state != "undeployed":
            known.options = dict(options)
            return known
    return DeploymentRecord(
        path=path,
        host=host,
        address=address,
        options=dict(options),
        project=adapter.project,
        model=adapter.name,
        step=adapter.step,
        base_model=adapter.base_model,
        sha256=adapter.sha256,
    )


def read_record(path: Path) -> DeploymentRecord:
    """Raises `DeployError` for a file that is no record of a version that this Gavel reads."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version = cast("dict[str, Any]", values).pop("format_version")
        if version != FORMAT_VERSION:
            raise DeployError(f"{path} has format version {version}", "Upgrade Gavel (pip install --upgrade gavel-rl).")
        return DeploymentRecord(path=path, **values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DeployError(
            f"{path} is no record of a deployment: {error}",
            "Look at the host's own console for what it still serves, and then delete the file.",
        ) from error


def read_records(run: Path) -> list[DeploymentRecord]:
    """The records of a run, oldest first."""
    found = [read_record(path) for path in (run / DEPLOYMENTS).glob("*.json") if not path.name.startswith(".")]
    return sorted(found, key=lambda record: record.begun)
