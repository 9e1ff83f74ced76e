"""The backend of another machine, as a `Backend`.

Each call is a job, known by a hash of its groups, its settings and the step that it starts from. Sent again because the
line was cut, or because the server or this process was restarted, it is the same job: no step is trained twice.
"""

import asyncio
import hashlib
import json
import logging
import math
import os
import tempfile
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, cast

from gavel.base.files import file_sha256, is_inside
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.protocol import Endpoint, NotRegisteredError, TrainResult
from gavel.trainer.backends.remote.connection import Connection, model_path
from gavel.trainer.backends.remote.wire import (
    KEY_VARIABLE,
    URL_VARIABLE,
    Job,
    JobState,
    Kind,
    ModelState,
    RemoteBackendError,
    checked_key,
    checked_url,
    pack_groups,
)
from gavel.trainer.config import ExportDtype, ExportForm, SftConfig, TrainConfig
from gavel.trainer.model_spec import ModelSpec, TrainableSpec, described_fields
from gavel.trainer.runs.checkpoints import new_export, occupied_error, read_export_mark
from gavel.trainer.runs.run_directory import NamedCheckpointError, names_something, run_path, runs_root

logger = logging.getLogger(__name__)


def fetch_directory(connection: Connection, path: str, files: Mapping[str, str], target: Path) -> None:
    """Fetches `files` (their SHA-256 by name) from `path` into `target`.

    Raises `ExportError` when something else is there, or it cannot be written, and `RemoteBackendError`.
    """
    if os.path.lexists(target):
        if all((target / name).is_file() and file_sha256(target / name) == sha256 for name, sha256 in files.items()):
            return
        raise occupied_error(target)
    with new_export(target) as unfinished:
        for name, sha256 in files.items():
            file = unfinished / name
            if not is_inside(unfinished, file):
                raise RemoteBackendError(f"the server names a file outside the export: {name}", "Is it to be trusted?")
            connection.fetch(f"{path}/{name}", file)
            if file_sha256(file) != sha256:
                raise RemoteBackendError(f"{name} arrived with another SHA-256", "Export it again.")


def _check_export(target: Path) -> None:
    if os.path.lexists(target) and read_export_mark(target) is None:
        raise occupied_error(target)


_REPEATED: frozenset[Kind] = frozenset({"train", "train_sft"})
"""Jobs that are the same when the same is asked again from the same step; others are asked for anew each time."""
_SECONDS_OF_A_REPEAT = 6.0
"""Min seconds that OpenAI's client waits between retries, after the first few."""
_LEAST_REPEATS = 8


class RemoteBackend:
    """Trains and serves models where `gavel backend` runs; also an async context manager."""

    def __init__(self, url: str | None = None, key: str | None = None, *, patience: float = 600.0) -> None:
        """`url`, `key`: of the server; by default GAVEL_BACKEND_URL and GAVEL_BACKEND_KEY.

        `patience`: seconds without an answer after which a call raises `RemoteBackendError`. Raises it for an address
        or a key that cannot be one.
        """
        self._url = checked_url(url or os.environ.get(URL_VARIABLE) or "")
        self._key = checked_key(key or os.environ.get(KEY_VARIABLE) or "")
        self._patience = patience
        self._writer = uuid.uuid4().hex
        self.connection = Connection(self._url, self._key, patience)
        self._states: dict[tuple[str, str], ModelState] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def register(self, model: ModelSpec) -> None:
        """Makes the model ready there. What this client, or another one, left running is waited for first.

        A checkpoint to begin with is one of there, or in a store.
        """
        run_path(Path(), *model.key)  # a name that no run can have is told before it is part of an address
        trainable = isinstance(model, TrainableSpec)
        fields = set(TrainableSpec.model_fields if trainable else ModelSpec.model_fields)
        spec = model.model_dump(mode="json", include=fields)
        asked = model.from_checkpoint if isinstance(model, TrainableSpec) else None
        if is_here := asked is not None and names_something(asked, runs_root()):
            logger.warning("%s is looked up at %s, not on this machine", asked, self._url)
        try:
            await self._run(model, "register", {"spec": spec, "trainable": trainable})
        except NamedCheckpointError as error:
            if not is_here:
                raise
            remedy = f"Push it to a store, and begin with that: gavel push {asked} s3://BUCKET (docs/elsewhere.md)."
            raise NamedCheckpointError(f"{asked} is on this machine, not on that of the backend", remedy) from error

    async def find(self, project: str, name: str) -> TrainableSpec:
        """A run that is kept there, for `export`, `push` and `history`; whoever trains it goes on.

        Nothing is registered or loaded there. Raises `NotRegisteredError` where there is no such run.
        """
        run_path(Path(), project, name)
        kept: dict[str, Any] = await asyncio.to_thread(self.connection.get, model_path((project, name)))
        spec = TrainableSpec.model_validate(described_fields(kept) | {"project": project, "name": name})
        steps = kept["checkpoints"]
        self._states[spec.key] = ModelState(step=steps[-1] if steps else 0, versions=1, checkpoints=steps)
        return spec

    async def prepare(self, model: TrainableSpec, config: TrainConfig) -> None:
        await self._run(model, "prepare", {"config": config.model_dump(mode="json")})

    async def train(
        self,
        model: TrainableSpec,
        groups: list[TrajectoryGroup],
        config: TrainConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> TrainResult:
        arguments = {"config": config.model_dump(mode="json"), "metrics": dict(metrics or {})}
        return _train_result(await self._run(model, "train", arguments, groups))

    async def train_sft(self, model: TrainableSpec, trajectories: list[Trajectory], config: SftConfig) -> TrainResult:
        groups = [TrajectoryGroup(trajectories)]
        return _train_result(await self._run(model, "train_sft", {"config": config.model_dump(mode="json")}, groups))

    async def log(
        self,
        model: ModelSpec,
        groups: list[TrajectoryGroup],
        split: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        arguments = {"split": split, "step": step, "metrics": dict(metrics or {})}
        return (await self._run(model, "log", arguments, groups)).result["means"]

    async def logged(self, model: ModelSpec, split: str, step: int) -> list[TrajectoryGroup]:
        if all(row["step"] != step for row in await asyncio.to_thread(self.history, model, split)):
            return []
        place = f"{model_path(model.key)}/files/trajectories/{split}/{step:06d}.jsonl.zst"
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "groups.jsonl.zst")
            await asyncio.to_thread(self.connection.fetch, place, file)
            return await asyncio.to_thread(lambda: list(TrajectoryStore(file)))

    def endpoint(self, model: TrainableSpec) -> Endpoint:
        url, limits = f"{self._url}{model_path(model.key)}/openai/v1", self._state(model).limits
        repeats = max(_LEAST_REPEATS, math.ceil(self._patience / _SECONDS_OF_A_REPEAT))  # the server may restart
        return Endpoint(url, self._key, limits, repeats=repeats)

    def step(self, model: ModelSpec) -> int:
        return self._state(model).step

    def versions(self, model: TrainableSpec) -> int:
        return self._state(model).versions

    def checkpoints(self, model: TrainableSpec) -> list[int]:
        return list(self._state(model).checkpoints)

    def record(self, model: ModelSpec, values: Mapping[str, float | str], split: str) -> None:
        self._run_now(model, "record", {"values": dict(values), "split": split})

    def pin(self, model: ModelSpec, settings: Mapping[str, Any]) -> None:
        self._run_now(model, "pin", {"settings": dict(settings)})

    def history(self, model: ModelSpec, split: str | None = None) -> list[dict[str, Any]]:
        self._state(model)
        only = {} if split is None else {"split": split}
        return cast("list[dict[str, Any]]", self.connection.get(f"{model_path(model.key)}/history", **only))

    async def delete_checkpoints(self, model: TrainableSpec, steps: Iterable[int]) -> None:
        await self._run(model, "delete_checkpoints", {"steps": list(steps)})

    async def export(
        self, model: TrainableSpec, form: ExportForm, dtype: ExportDtype, step: int | None, out: Path | None
    ) -> Path:
        """Exports there, and fetches the directory; `out` defaults to `exports` of a run directory here."""
        if out is not None:
            _check_export(out)  # before a long one
        made = (await self._run(model, "export", {"form": form, "dtype": dtype, "step": step})).result
        directory, files = str(made["directory"]), made["files"]
        target = out or run_path(runs_root(), *model.key) / directory
        path = f"{model_path(model.key)}/files/{directory}"
        await asyncio.to_thread(fetch_directory, self.connection, path, files, target)
        return target

    async def push(self, model: TrainableSpec, address: str, step: int) -> str:
        """From there, with the credentials of there."""
        return str((await self._run(model, "push", {"address": address, "step": step})).result["address"])

    def parameter_count(self, model: TrainableSpec) -> int:
        """Parameters of the base model."""
        return self._state(model).parameters

    async def close(self) -> None:
        """Ends this client; the server goes on, and keeps what it was asked for."""
        self._states.clear()
        self.connection.close()

    def _state(self, model: ModelSpec) -> ModelState:
        if model.key not in self._states:
            raise NotRegisteredError.of(model.name)
        return self._states[model.key]

    async def _run(
        self,
        model: ModelSpec,
        kind: Kind,
        arguments: dict[str, Any],
        groups: list[TrajectoryGroup] | None = None,
    ) -> JobState:
        abandoned = threading.Event()
        try:
            return await asyncio.to_thread(self._run_now, model, kind, arguments, groups, abandoned)
        except asyncio.CancelledError:
            abandoned.set()  # the same call again finds the same job
            raise

    def _run_now(
        self,
        model: ModelSpec,
        kind: Kind,
        arguments: dict[str, Any],
        groups: list[TrajectoryGroup] | None = None,
        abandoned: threading.Event | None = None,
    ) -> JobState:
        abandoned = abandoned or threading.Event()
        step = None if kind == "register" else self._state(model).step
        content = b"" if groups is None else pack_groups(groups)
        job = Job(
            id=uuid.uuid4().hex,
            kind=kind,
            writer=self._writer,
            groups=hashlib.sha256(content).hexdigest() if content else "",
            arguments=canonical(arguments),
        )
        if kind in _REPEATED:
            job = job.model_copy(update={"step": step})
            work = json.dumps([*model.key, job.model_dump(mode="json", exclude={"id", "writer"})], sort_keys=True)
            job = job.model_copy(update={"id": hashlib.sha256(work.encode()).hexdigest()})
        state = self.connection.run(model.key, job, content, abandoned)
        if state.model is not None and not abandoned.is_set():
            self._states[model.key] = state.model
        return state


def canonical(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the server parses them; numbers that are not finite become null.

    Raises `RemoteBackendError` for what JSON cannot hold.
    """
    try:
        return json.loads(json.dumps(arguments), parse_constant=lambda _: None)
    except (TypeError, ValueError) as error:
        raise RemoteBackendError(f"an argument cannot be sent: {error}", "Give numbers, strings, lists.") from error


def _train_result(state: JobState) -> TrainResult:
    result = state.result
    metrics: dict[str, float | None] = result["metrics"]
    numbers = {name: math.nan if value is None else value for name, value in metrics.items()}
    return TrainResult(result["step"], result["trained"], result["reason"], numbers)
