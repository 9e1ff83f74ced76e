"""What was done for a model, by the id of each job: `<run directory>/jobs.jsonl`.

    {"id": "5f…", "begun": {"kind": "train", "step": 3, "rows": 9}}
    {"id": "5f…", "done": {"step": 4, "trained": true, "reason": null, "metrics": {…}}}

A job that was begun and never done belongs to a server that was killed. Whether its work is there is read from the run:
a step is whole or was not made, and metrics are rows that were written or not.
"""

import json
import os
from pathlib import Path
from typing import Any

from gavel.scenarios.trajectory_store import write_whole

FILE = "jobs.jsonl"


class Journal:
    """The jobs of one run, in the order in which they were begun."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._begun: dict[str, dict[str, Any]] = {}
        self._done: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            text = self._path.read_bytes()
            for line in text.splitlines():
                self._read(line)
            if text and not text.endswith(b"\n"):  # its writer was killed
                self._append(b"\n")

    def result(self, job: str) -> dict[str, Any] | None:
        """What the job gave; None when it is not known to be done."""
        return self._done.get(job)

    def begun(self, job: str) -> dict[str, Any] | None:
        """What was noted when the job was begun."""
        return self._begun.get(job)

    def begin(self, job: str, note: dict[str, Any]) -> None:
        self._write({"id": job, "begun": note})
        self._begun[job] = note

    def finish(self, job: str, result: dict[str, Any]) -> None:
        self._done[job] = result
        self._write({"id": job, "done": result})

    def forget(self, job: str) -> None:
        """After a job that failed: it may be begun again."""
        self._begun.pop(job, None)
        self._write({"id": job, "failed": True})

    def _read(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return  # the end that a killed writer left
        if "begun" in entry:
            self._begun[entry["id"]] = entry["begun"]
        elif "done" in entry:
            self._done[entry["id"]] = entry["done"]
        else:
            self._begun.pop(entry["id"], None)

    def _write(self, entry: dict[str, Any]) -> None:
        self._append(json.dumps(entry).encode() + b"\n")

    def _append(self, data: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            write_whole(file.fileno(), data, file.seek(0, os.SEEK_END))
            os.fsync(file.fileno())
