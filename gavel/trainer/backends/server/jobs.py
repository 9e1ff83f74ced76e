"""The job queue of a server: one job at a time per model, in order of arrival.

`job.json` of a run directory keeps the client that may change the model and the last job of each split:

    {"writer": "8a…", "begun": {"train": {"id": "5f…", "step": 3, "rows": 9}}}

A job that is sent again after the server was killed is not done twice. Whether its work is there is read from the run:
a step is whole or was not made, and metrics are rows that were written or not.
"""

import asyncio
import inspect
import logging
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from gavel.base.errors import GavelError
from gavel.base.files import file_sha256, write_atomically
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import NotRegisteredError, TrainResult
from gavel.trainer.backends.remote.wire import (
    Fault,
    Job,
    JobState,
    Kind,
    ModelState,
    RemoteError,
    WriterError,
    unpack_groups,
)
from gavel.trainer.backends.run_export import export_run
from gavel.trainer.config import SftConfig, TrainConfig
from gavel.trainer.model_spec import ModelSpec, TrainableSpec, described_fields
from gavel.trainer.runs.checkpoints import read_object
from gavel.trainer.runs.run_directory import RunDirectoryError, read_description, run_path
from gavel.trainer.runs.stores import open_store, push_checkpoint

logger = logging.getLogger(__name__)
FILE = "job.json"
_READING: frozenset[Kind] = frozenset({"export", "push"})
"""Jobs that read the run directory alone: they are any client's, and the model need not be loaded."""
_DESCRIPTION = "model.json"
_NAMED = 10
"""Runs that an error lists."""
_KEPT = 200
"""Jobs of a model whose ends are remembered."""
_MEND_THERE = "Mend it on the server, whose log says more, and call again: no step is trained twice."
Key = tuple[str, str]


class Begun(BaseModel):
    """The last job of a split."""

    id: str
    step: int
    """Training steps before it."""
    rows: int
    """Rows of the split before it."""


class Record(BaseModel):
    """The contents of job.json."""

    writer: str | None = None
    """The client that registered the model last."""
    begun: dict[str, Begun] = Field(default_factory=dict[str, Begun])


class ServedModel:
    """A model as its clients registered it."""

    def __init__(self, spec: ModelSpec, directory: Path) -> None:
        self.spec = spec
        self.name = "/".join(spec.key)
        self.directory = directory
        self.lock = asyncio.Lock()
        self.jobs: OrderedDict[str, asyncio.Task[JobState]] = OrderedDict()
        """By id, the newest last."""
        self.ready = False
        """True if the model is registered with the backend."""
        self.record = Record.model_validate(read_object(directory / FILE))

    def check(self, writer: str) -> None:
        """Raises `WriterError` for a client that may not change the model."""
        if writer != self.record.writer:
            raise WriterError(
                f"another client has registered {self.name} since, and alone may change it",
                "Stop one of the two programs, and start this one again: it goes on from the last step. For a run of "
                "its own give it another name.",
            )

    def save(self) -> None:
        write_atomically(self.directory / FILE, self.record.model_dump_json(), durable=True)


class Jobs:
    """The models and jobs of one backend. A model that a killed server had is loaded again on its next request."""

    def __init__(self, backend: LocalBackend, root: Path) -> None:
        self._backend = backend
        self._root = root
        self._models: dict[Key, ServedModel] = {}

    def submit(self, key: Key, job: Job, groups: bytes) -> "asyncio.Task[JobState]":
        """The job, begun unless it was before. Raises `WriterError`, and `NotRegisteredError`."""
        if job.kind == "register":
            spec = _spec(job.arguments)
            if spec.key != key:
                raise RunDirectoryError(f"the model {'/'.join(spec.key)} is not {'/'.join(key)}", "Name one of them.")
            model = self._models.setdefault(key, ServedModel(spec, run_path(self._root, *key)))
        else:
            model = self._registered(key) if job.kind not in _READING else self.model(key)
            if job.kind not in _READING:
                model.check(job.writer)
        known = model.jobs.get(job.id)
        if known is None or (known.done() and known.result().error is not None):
            known = model.jobs[job.id] = asyncio.create_task(self._run(model, job, groups))
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
        model = self._registered(key)
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

    def _registered(self, key: Key) -> ServedModel:
        """Raises `NotRegisteredError` for a run that no client has registered."""
        if (model := self.model(key)).record.writer is None:
            raise NotRegisteredError.of(model.name)
        return model

    async def _run(self, model: ServedModel, job: Job, groups: bytes) -> JobState:
        async with model.lock:
            try:
                result = await self._run_once(model, job, groups)
                return JobState(id=job.id, state="done", result=result, model=self._state(model))
            except GavelError as error:
                fault = Fault.of(error)
            except ValidationError as error:
                fault = Fault.of(unknown_settings(error))
            except Exception as error:  # the server goes on, and its client must know
                logger.exception("the job %s of %s failed", job.kind, model.name)
                kind = type(error).__name__
                fault = Fault(type=kind, message=f"{kind}: {error}", remedy=_MEND_THERE)
        return JobState(id=job.id, state="failed", error=fault)

    async def _run_once(self, model: ServedModel, job: Job, groups: bytes) -> dict[str, Any]:
        if job.kind == "register":
            return await self._register(model, job)
        if job.kind in _READING:
            return await self._read(model, job)
        model.check(job.writer)  # it may have changed while the job waited
        await self._load(model)
        if job.kind in ("prepare", "pin", "delete_checkpoints"):  # again is as well as once
            return await self._perform(model, job, groups)
        split = {"train": "train", "train_sft": "sft"}.get(job.kind) or job.arguments["split"]
        step, rows = self._backend.step(model.spec), self._backend.history(model.spec, split)
        begun = model.record.begun.get(split)
        if begun and begun.id == job.id and (result := _find_result(job, begun, step, rows)) is not None:
            return result
        if job.step is not None and job.step != step:
            raise RemoteError(
                f"{model.name} is at step {step}, and its client is at step {job.step}",
                "Register the model again (or give the command again), and go on from its step.",
            )
        model.record.begun[split] = Begun(id=job.id, step=step, rows=len(rows))
        model.save()
        return await self._perform(model, job, groups)

    async def _register(self, model: ServedModel, job: Job) -> dict[str, Any]:
        before, model.spec, model.ready = model.spec, _spec(job.arguments), False
        try:
            await self._load(model)
        except BaseException:
            model.spec = before
            raise
        model.record.writer = job.writer
        model.save()
        return {}

    async def _perform(self, model: ServedModel, job: Job, content: bytes) -> dict[str, Any]:
        """Calls the backend's method of the job's kind with its arguments."""
        given = dict(job.arguments)
        if "config" in given:
            kind = SftConfig if job.kind == "train_sft" else TrainConfig
            given["config"] = kind.model_validate(given["config"])
        if job.kind in ("train", "train_sft", "log"):
            groups = await asyncio.to_thread(unpack_groups, job, content)
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
        files = sorted(path for path in made.rglob("*") if path.is_file())
        hashes = {str(file.relative_to(made)): await asyncio.to_thread(file_sha256, file) for file in files}
        return {"directory": str(made.resolve().relative_to(run.resolve())), "files": hashes}

    async def _load(self, model: ServedModel) -> None:
        """Registers it with the backend, which resumes it; does nothing for one that is ready and alive."""
        if model.ready and self._state(model) is not None:  # an error releases it
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


def _find_result(job: Job, begun: Begun, step: int, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of a job that an earlier server did; None if its work is not there."""
    if job.kind not in ("train", "train_sft"):
        return {"means": _numbers(rows[-1])} if len(rows) > begun.rows else None
    made = next((row for row in reversed(rows) if row["step"] == begun.step + 1), None)
    if step != begun.step + 1 or made is None:
        return None
    trained = bool(made.get("trajectories_trained"))
    reason = None if trained else "No trajectory could be trained; the step's metrics count why."
    return asdict(TrainResult(made["step"], trained, reason, _numbers(made)))


def unknown_settings(error: ValidationError | RequestValidationError) -> RemoteError:
    """The error for settings that this version does not support."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return RemoteError(
        f"the server does not take {where or 'what it is sent'}: {first['msg']}",
        "Install the same version of Gavel on both sides.",
    )


def _spec(given: dict[str, Any]) -> ModelSpec:
    return (TrainableSpec if given["trainable"] else ModelSpec).model_validate(given["spec"])


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {k: value for k, value in row.items() if isinstance(value, int | float) and k not in ("step", "time")}
