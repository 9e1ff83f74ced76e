"""The job queue of a server: one job at a time per model, in order of arrival.

What was done for a model, by the id of each job: `<run directory>/jobs.jsonl`.

    {"id": "2c…", "writer": "8a…"}                                    the client that may change the model from here on
    {"id": "5f…", "begun": {"kind": "train", "step": 3, "rows": 9}}
    {"id": "5f…", "done": {"step": 4, "trained": true, "reason": null, "metrics": {…}}}

A job that was begun and never done belongs to a server that was killed. Whether its work is there is read from the run:
a step is whole or was not made, and metrics are rows that were written or not.
"""

import asyncio
import contextlib
import functools
import inspect
import json
import logging
import os
import tempfile
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from gavel.base.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore, write_whole
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import NotRegisteredError, TrainResult
from gavel.trainer.backends.remote.wire import (
    Fault,
    Job,
    JobState,
    KeptRun,
    Kind,
    ModelState,
    SentAdapter,
    StepError,
    UnknownSettingsError,
    WriterError,
)
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.backends.server.uploads import Uploads, served_files
from gavel.trainer.config import SftConfig, TrainConfig
from gavel.trainer.model_spec import ModelSpec, TrainableSpec, described_fields
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.run_directory import RunDirectoryError, read_description, run_path
from gavel.trainer.runs.stores import open_store, push_checkpoint

FILE = "jobs.jsonl"


class Journal:
    """The jobs of one run."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self.writer: str | None = None
        """The client that registered the model last."""
        self._jobs: dict[str, dict[str, Any]] = {}
        text = self._path.read_bytes() if self._path.exists() else b""
        for line in text.splitlines():
            with contextlib.suppress(ValueError):  # of the end that a killed writer left
                self._take(**json.loads(line))
        if text and not text.endswith(b"\n"):
            self._append(b"\n")

    def of(self, job: str) -> dict[str, Any]:
        """What is known of a job: `begun`, and `done` once it is."""
        return self._jobs.get(job, {})

    def write(self, job: str, **entry: Any) -> None:
        """Adds `begun`, `done`, or `failed`, after which the job may be begun again; or the `writer` of a job."""
        self._append(json.dumps({"id": job, **entry}).encode() + b"\n")
        self._take(job, **entry)

    def _take(self, id: str, **entry: Any) -> None:
        if "writer" in entry:
            self.writer = entry["writer"]
        elif "failed" in entry:
            self._jobs.pop(id, None)
        else:
            self._jobs.setdefault(id, {}).update(entry)

    def _append(self, data: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            write_whole(file.fileno(), data, file.seek(0, os.SEEK_END))
            os.fsync(file.fileno())


logger = logging.getLogger(__name__)

_READING: frozenset[Kind] = frozenset({"export", "push"})
"""Jobs that read the run directory alone: they are any client's, and the model need not be loaded."""
_DESCRIPTION = "model.json"
_NAMED = 10
"""Runs that an error lists."""
_KEPT = 200
"""Jobs of a model whose ends are remembered; older ones are in its journal."""
_MEND_THERE = "Mend it on the server, whose log says more, and call again: no step is trained twice."
Key = tuple[str, str]


class ServedModel:
    """A model as its clients registered it."""

    def __init__(self, spec: ModelSpec, directory: Path) -> None:
        self.spec = spec
        self.directory = directory
        self.lock = asyncio.Lock()
        self.jobs: OrderedDict[str, asyncio.Task[JobState]] = OrderedDict()
        """By id, the newest last."""
        self.ready = False
        """True if the model is registered with the backend."""

    def kept_run(self) -> KeptRun:
        """Raises `RunDirectoryError` where there is no description."""
        checkpoints = Checkpoints(self.directory / "checkpoints").steps()
        return KeptRun(description=read_description(self.directory / _DESCRIPTION), checkpoints=checkpoints)

    @functools.cached_property
    def journal(self) -> Journal:
        """The journal of the run directory, which the backend makes."""
        return Journal(self.directory)


class Jobs:
    """The models and jobs of one backend. A model that a killed server had is loaded again on its next request."""

    def __init__(self, backend: LocalBackend, root: Path, uploads: Uploads) -> None:
        self._backend = backend
        self._root = root
        self._uploads = uploads
        self._models: dict[Key, ServedModel] = {}

    def submit(self, key: Key, job: Job) -> "asyncio.Task[JobState]":
        """The job, begun unless it was before. Raises `WriterError`, and `NotRegisteredError`."""
        if job.kind == "register":
            model = self._registered(key, job)
        else:
            model = self.model(key)
            if job.kind not in _READING:
                self._check_writer(model, job)
        known = model.jobs.get(job.id)
        if known is None or (known.done() and known.result().error is not None):
            known = model.jobs[job.id] = asyncio.create_task(self._run(model, job))
        while len(model.jobs) > _KEPT and next(iter(model.jobs.values())).done():
            model.jobs.popitem(last=False)
        return known

    def find(self, key: Key, job: str) -> "asyncio.Task[JobState] | None":
        """The job; None if this server does not know it: it was restarted, or the job was never sent."""
        model = self._models.get(key)
        return model.jobs.get(job) if model else None

    def model(self, key: Key) -> ServedModel:
        """The served model, also if no client registered it but its run is here. Raises `NotRegisteredError`."""
        if key not in self._models:
            directory = run_path(self._root, *key)
            spec = ModelSpec(project=key[0], name=key[1])
            if (directory / _DESCRIPTION).is_file():
                fields = described_fields(read_description(directory / _DESCRIPTION))
                spec = TrainableSpec.model_validate(fields | spec.model_dump())
            elif not (directory / FILE).is_file():  # that of a model which is only prompted
                there = sorted("/".join(file.parts[-3:-1]) for file in self._root.glob(f"*/*/{_DESCRIPTION}"))
                raise NotRegisteredError(
                    f"the backend has no run {'/'.join(key)}", f"It has: {', '.join(there[:_NAMED]) or 'none'}."
                )
            self._models[key] = ServedModel(spec, directory)
        return self._models[key]

    async def loaded(self, key: Key) -> ServedModel:
        """The model, ready; it is loaded when an earlier server had it. Raises `NotRegisteredError`."""
        model = self.model(key)
        self._writer(model)
        if not model.ready:
            async with model.lock:
                await self._load(model)
        return model

    def running(self) -> "set[asyncio.Task[JobState]]":
        """The jobs that run or wait."""
        return {task for model in self._models.values() for task in model.jobs.values() if not task.done()}

    async def close(self) -> None:
        """Waits for the jobs that run."""
        while running := self.running():
            await asyncio.wait(running)
        await self._backend.close()

    def _registered(self, key: Key, job: Job) -> ServedModel:
        if key not in self._models:
            spec = _spec(job.arguments)
            if spec.key != key:
                raise RunDirectoryError(f"the model {'/'.join(spec.key)} is not {'/'.join(key)}", "Name one of them.")
            self._models[key] = ServedModel(spec, run_path(self._root, *key))
        return self._models[key]

    def _writer(self, model: ServedModel) -> str:
        """The client that may change the model. Raises `NotRegisteredError`."""
        if (writer := model.journal.writer) is None:
            raise NotRegisteredError(
                f"the model {'/'.join(model.spec.key)} is not registered here", "First: await model.register(backend)"
            )
        return writer

    def _check_writer(self, model: ServedModel, job: Job) -> None:
        if job.writer != self._writer(model):
            raise WriterError(
                f"another client has registered {'/'.join(model.spec.key)} since, and alone may change it",
                "Stop one of the two programs, and start this one again: it goes on from the last step. For a run of "
                "its own give it another name.",
            )

    async def _run(self, model: ServedModel, job: Job) -> JobState:
        async with model.lock:
            try:
                result = await self._run_once(model, job)
                return JobState(id=job.id, state="done", result=result, model=self._state(model))
            except GavelError as error:
                fault = Fault.of(error)
            except ValidationError as error:
                fault = Fault.of(unknown_settings(error))
            except Exception as error:  # the server goes on, and its client must know
                logger.exception("the job %s of %s failed", job.kind, "/".join(model.spec.key))
                kind = type(error).__name__
                fault = Fault(type=kind, message=f"{kind}: {error}", remedy=_MEND_THERE)
        return JobState(id=job.id, state="failed", error=fault)

    async def _run_once(self, model: ServedModel, job: Job) -> dict[str, Any]:
        if job.kind == "register":
            await self._register(model, job)
            return {}
        if job.kind in _READING:
            return await self._read(model, job)
        self._check_writer(model, job)  # it may have changed while the job waited
        await self._load(model)
        if job.kind in ("prepare", "pin", "delete_checkpoints"):  # again is as well as once
            return await self._perform(model, job)
        journal, known = model.journal, model.journal.of(job.id)
        result = known.get("done")
        if result is None and "begun" in known:
            result = self._finished_by_another_server(model, job, known["begun"])
        if result is None:
            self._check_step(model, job)
            rows = len(self._backend.history(model.spec, _split(job)))
            note = {"kind": job.kind, "step": self._backend.step(model.spec), "rows": rows}
            journal.write(job.id, begun=note)
            try:
                result = await self._perform(model, job)
            except BaseException:
                journal.write(job.id, failed=True)
                raise
        if "done" not in known:
            journal.write(job.id, done=result)
        self._uploads.remove(job.upload)
        return result

    async def _register(self, model: ServedModel, job: Job) -> None:
        before, spec = model.spec, _spec(job.arguments)
        sent = _sent_adapter(job)
        begun = (model.directory / "model.json").exists()  # it has its own copy then
        model.ready = False
        with self._uploads.start(sent) if sent and not begun else contextlib.nullcontext() as start:
            model.spec = spec if start is None else spec.model_copy(update={"from_checkpoint": str(start)})
            try:
                await self._load(model)
            except BaseException:
                model.spec = before
                raise
        model.spec = spec
        model.journal.write(job.id, writer=job.writer)

    def _finished_by_another_server(self, model: ServedModel, job: Job, note: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a job whose server was killed before recording it; None if the work was not done."""
        rows = self._backend.history(model.spec, _split(job))
        if job.kind in ("train", "train_sft"):
            made = next((row for row in reversed(rows) if row["step"] == note["step"] + 1), None)
            if self._backend.step(model.spec) != note["step"] + 1 or made is None:
                return None
            trained = bool(made.get("trajectories_trained"))
            reason = None if trained else "No trajectory could be trained; the step's metrics count why."
            return asdict(TrainResult(made["step"], trained, reason, _numbers(made)))
        return {"means": _numbers(rows[-1])} if len(rows) > note["rows"] else None

    def _check_step(self, model: ServedModel, job: Job) -> None:
        step = self._backend.step(model.spec)
        if job.step is not None and job.step != step:
            raise StepError(
                f"{'/'.join(model.spec.key)} is at step {step}, and its client is at step {job.step}",
                "Register the model again (or give the command again), and go on from its step.",
            )

    async def _perform(self, model: ServedModel, job: Job) -> dict[str, Any]:
        """Calls the backend's method of the job's kind with its arguments."""
        given = {name: value for name, value in job.arguments.items() if name != "adapter"}
        if "config" in given:
            kind = SftConfig if job.kind == "train_sft" else TrainConfig
            given["config"] = kind.model_validate(given["config"])
        if (sent := _sent_adapter(job)) is not None:
            await asyncio.to_thread(self._uploads.keep_reference, sent, model.directory)
        if job.kind in ("train", "train_sft", "log"):
            groups = await asyncio.to_thread(self._groups, job)
            if job.kind == "train_sft":
                given["trajectories"] = [member for group in groups for member in group]
            else:
                given["groups"] = groups
        made = getattr(self._backend, job.kind)(model.spec, **given)
        result = await made if inspect.isawaitable(made) else made
        if isinstance(result, TrainResult):
            return asdict(result)
        return {"means": result} if job.kind == "log" else {}

    async def _read(self, model: ServedModel, job: Job) -> dict[str, Any]:
        run, given = model.directory, job.arguments
        if job.kind == "push":
            store, place = await asyncio.to_thread(open_store, given["address"]), "/".join(model.spec.key)
            return {"address": await asyncio.to_thread(push_checkpoint, run, given["step"], store, place)}
        made = await asyncio.to_thread(export_run, run, given["form"], dtype=given["dtype"], step=given["step"])
        directory = str(made.resolve().relative_to(run.resolve()))
        return {"directory": directory, "files": await asyncio.to_thread(served_files, made)}

    def _groups(self, job: Job) -> list[TrajectoryGroup]:
        with tempfile.TemporaryDirectory(prefix="gavel-batch-") as directory:
            store = TrajectoryStore(Path(directory, "groups.jsonl.zst"))
            self._uploads.write(job.upload, store.path)
            return list(store)

    async def _load(self, model: ServedModel) -> None:
        """Registers it with the backend, which resumes it; does nothing for one that is ready and alive."""
        if model.ready:
            with contextlib.suppress(NotRegisteredError):  # an error has released it
                self._backend.step(model.spec)
                return
        await self._backend.register(model.spec)
        model.ready = True

    def _state(self, model: ServedModel) -> ModelState | None:
        try:
            step = self._backend.step(model.spec)
        except NotRegisteredError:
            return None
        if not isinstance(model.spec, TrainableSpec):
            return ModelState(step=step, versions=1, checkpoints=[])
        return ModelState(
            step=step,
            versions=self._backend.versions(model.spec),
            checkpoints=self._backend.checkpoints(model.spec),
            parameters=self._backend.parameter_count(model.spec),
            limits=self._backend.endpoint(model.spec).limits,
        )


def unknown_settings(error: ValidationError | RequestValidationError) -> UnknownSettingsError:
    """The error for settings that this version does not support."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return UnknownSettingsError(
        f"the server does not take {where or 'what it is sent'}: {first['msg']}",
        "Install the same version of Gavel on both sides.",
    )


def _sent_adapter(job: Job) -> SentAdapter | None:
    sent = job.arguments.get("adapter")
    return None if sent is None else SentAdapter.model_validate(sent)


def _spec(given: dict[str, Any]) -> ModelSpec:
    return (TrainableSpec if given["trainable"] else ModelSpec).model_validate(given["spec"])


def _split(job: Job) -> str:
    return {"train": "train", "train_sft": "sft"}.get(job.kind) or job.arguments["split"]


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {k: value for k, value in row.items() if isinstance(value, int | float) and k not in ("step", "time")}
