"""What is sent in batches, on file: so that a killed process loses no result, and sends nothing twice.

A directory holds, for each batch, `<tag>.requests.jsonl` (what is sent), `<tag>.results.jsonl` (what came back), and an
entry in `state.json`, which is written before each step and after it:

    written     the requests are on file
    uploaded    so is the id of the vendor's copy
    sending     the batch is being created: after a kill it is looked for by its tag
    sent        its id is known
    over        its results are on file

One process at a time uses the directory.
"""

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from gavel.llm.errors import LlmError

FORMAT_VERSION = 1


class BatchRecord(BaseModel):
    """One batch."""

    tag: str
    """Random; it is the metadata of the vendor's batch."""
    model: str
    address: str
    """The server, where the user names one."""
    reply_format: int
    """Index of the reply format that the requests ask for."""
    stage: Literal["written", "uploaded", "sending", "sent", "over"] = "written"
    file_id: str = ""
    batch_id: str = ""
    sending_since: float = 0.0
    """Unix time."""
    end: str = ""
    """The vendor's last status."""


class _State(BaseModel):
    format_version: int = FORMAT_VERSION
    batches: list[BatchRecord] = []


class BatchJob:
    """The batches of one output."""

    def __init__(self, directory: Path) -> None:
        """Raises `LlmError` when the directory cannot be used, or another process uses it."""
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / ".lock").open("w")
        except OSError as error:
            raise LlmError(f"{directory} cannot be written: {error}", "Choose another file with --out.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise LlmError(f"another process waits for the batches in {directory}.", "Let it, or stop it.") from error
        self._state = self._read()

    def _read(self) -> _State:
        path = self.directory / "state.json"
        if not path.exists():
            return _State()
        try:
            state = _State.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise LlmError(f"{path} cannot be read: {error}", "Restore it, or delete its directory.") from error
        if state.format_version > FORMAT_VERSION:
            raise LlmError(f"{path} was written by a newer Gavel.", "Install that version, or choose another --out.")
        return state

    @property
    def batches(self) -> list[BatchRecord]:
        return self._state.batches

    def add(self, model: str, address: str, reply_format: int, lines: Iterable[bytes]) -> BatchRecord:
        """A new batch with these requests."""
        batch = BatchRecord(tag=secrets.token_hex(16), model=model, address=address, reply_format=reply_format)
        self._write(f"{batch.tag}.requests.jsonl", lines)
        self._state.batches.append(batch)
        self.save()
        return batch

    def save(self) -> None:
        self._write("state.json", [self._state.model_dump_json(indent=1).encode()])

    def requests(self, batch: BatchRecord) -> bytes:
        return (self.directory / f"{batch.tag}.requests.jsonl").read_bytes()

    def keys(self, batch: BatchRecord) -> Iterator[str]:
        """The keys of the questions that the batch asks."""
        with (self.directory / f"{batch.tag}.requests.jsonl").open("rb") as file:
            for line in file:
                yield json.loads(line)["custom_id"]

    def finish(self, batch: BatchRecord, end: str, results: Iterable[bytes]) -> None:
        """Writes what came back."""
        self._write(f"{batch.tag}.results.jsonl", results)
        batch.stage, batch.end = "over", end
        self.save()

    def results(self, batch: BatchRecord) -> Iterator[bytes]:
        """The lines that came back."""
        with (self.directory / f"{batch.tag}.results.jsonl").open("rb") as file:
            yield from (line for line in file if line.strip())

    def start_sending(self, batch: BatchRecord) -> None:
        batch.stage, batch.sending_since = "sending", time.time()
        self.save()

    def stop_sending(self, batch: BatchRecord) -> None:
        batch.stage = "uploaded"
        self.save()

    def remove(self) -> None:
        """Deletes the directory: everything that came back is on the cassette, and in the output."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()

    def close(self) -> None:
        """Leaves the directory to other processes; an empty one is deleted."""
        self._lock.close()
        if not self.batches:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, name: str, parts: Iterable[bytes]) -> None:
        """Writes a file whole or not at all, and onto the disk."""
        path = self.directory / name
        unfinished = path.with_name(f"{name}.unfinished")
        with unfinished.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
