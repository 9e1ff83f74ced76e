"""Requests to a server of the remote backend, sent again until it has answered, for as long as the client is patient.

A broken line, a server that restarts and one that is busy cost time alone: jobs are known by their ids, and uploads go
on where they were cut off.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from tenacity import Retrying, retry_if_exception_type, wait_random_exponential

from gavel.llm.errors import GavelError
from gavel.trainer.backends.remote.batch_file import BatchFile
from gavel.trainer.backends.remote.faults import raise_fault
from gavel.trainer.backends.remote.wire import (
    HEARTBEAT_SECONDS,
    LENGTH_HEADER,
    OFFSET_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    Fault,
    Job,
    JobState,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 6 * HEARTBEAT_SECONDS
"""Without a byte, after which a line is taken for broken."""
_PART_BYTES = 1 << 20


class RemoteBackendError(GavelError):
    """The server of a remote backend cannot be reached, or answers what no such server answers."""


class _Again(Exception):
    """The request may succeed when it is sent again."""


class _UnknownJob(Exception):
    """The server was restarted since the job was sent."""


class Connection:
    """To one server; may be shared by threads."""

    def __init__(self, url: str, key: str, patience: float) -> None:
        """`patience`: seconds without an answer after which the server is given up."""
        self.url = url
        self._patience = patience
        self._closed = False
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}", PROTOCOL_HEADER: str(PROTOCOL)},
            timeout=httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS),
        )

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def run(self, key: tuple[str, str], job: Job, file: BatchFile | None = None) -> JobState:
        """Sends the job, with its file first, and waits until it is done. Raises what it failed with."""
        while True:
            if file is not None:
                self.upload(file)
            try:
                state = self._persist(lambda: self._submit(key, job))
                while state.state not in ("done", "failed"):
                    state = self._persist(lambda: self._follow(key, job.id))
            except _UnknownJob:
                continue
            if state.error is not None and state.error.type == "UploadMissingError" and file is not None:
                continue
            if state.error is not None:
                raise_fault(state.error)
            return state

    def upload(self, file: BatchFile) -> None:
        """Sends what is not there yet."""
        self._persist(lambda: self._upload(file))

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON that is there."""
        return self._persist(lambda: self._checked(self._client.get(path, params=parameters)).json())

    def fetch(self, path: str, file: Path) -> None:
        """Writes what is there into `file`, going on where a line was cut."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)

        def fetch() -> None:
            start = file.stat().st_size if file.exists() else 0
            with self._client.stream("GET", path, headers={"Range": f"bytes={start}-"}) as answer:
                if answer.status_code == 416:  # all of it is there
                    return
                if answer.status_code not in (200, 206):
                    answer.read()
                    self._checked(answer)
                with file.open("ab" if answer.status_code == 206 else "wb") as out:
                    for part in answer.iter_raw():
                        out.write(part)

        self._persist(fetch)

    def _submit(self, key: tuple[str, str], job: Job) -> JobState:
        answer = self._client.post(f"{model_path(key)}/jobs", json=job.model_dump(mode="json"))
        return JobState.model_validate(self._checked(answer).json())

    def _follow(self, key: tuple[str, str], job: str) -> JobState:
        state: JobState | None = None
        with self._client.stream("GET", f"{model_path(key)}/jobs/{job}") as answer:
            if answer.status_code == 404:
                raise _UnknownJob
            if answer.status_code != 200:
                answer.read()
                self._checked(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    state = JobState.model_validate_json(line.removeprefix("data: "))
        if state is None:
            raise _Again("the server closed the line")
        return state

    def _upload(self, file: BatchFile) -> None:
        path = f"/v1/uploads/{file.sha256}"
        there = int(self._checked(self._client.head(path)).headers[OFFSET_HEADER])
        if there >= file.size:
            return
        headers = {OFFSET_HEADER: str(there), LENGTH_HEADER: str(file.size)}
        answer = self._client.patch(path, content=_parts(file.path, there), headers=headers)
        if int(self._checked(answer).headers[OFFSET_HEADER]) < file.size:
            raise _Again("the upload was cut off")

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        try:
            fault = Fault.model_validate(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            if answer.status_code in _PASSING:
                raise _Again(f"status {answer.status_code}") from None
            raise RemoteBackendError(
                f"{self.url} answered with status {answer.status_code}", "Is it a server of `gavel backend`?"
            ) from None
        if answer.status_code in _PASSING:
            raise _Again(fault.message)
        raise_fault(fault)

    def _persist(self, request: Callable[[], T]) -> T:
        """What `request` gives, sent again while the client is patient."""
        began = time.monotonic()
        told = False

        def give_up(_: object) -> bool:
            return self._closed or time.monotonic() - began > self._patience

        def tell(state: Any) -> None:
            nonlocal told
            if not told:
                told = True
                logger.warning("%s: %s; trying again for %.0f s", self.url, state.outcome.exception(), self._patience)

        attempts = Retrying(
            retry=retry_if_exception_type((_Again, httpx.TransportError)),
            wait=wait_random_exponential(multiplier=0.1, max=5.0),
            stop=give_up,
            before_sleep=tell,
            reraise=True,
        )
        try:
            return attempts(request)
        except (_Again, httpx.TransportError) as error:
            raise RemoteBackendError(
                f"{self.url} has not answered for {time.monotonic() - began:.0f} s: {error or type(error).__name__}",
                "Does `gavel backend` run there, and does a line lead to it? The run goes on when it is back.",
            ) from error


def model_path(key: tuple[str, str]) -> str:
    return "/v1/models/" + "/".join(quote(part, safe="") for part in key)


def _parts(file: Path, start: int) -> Iterator[bytes]:
    with file.open("rb") as stream:
        stream.seek(start)
        while part := stream.read(_PART_BYTES):
            yield part


def canonical(arguments: dict[str, Any]) -> dict[str, Any]:
    """As the server reads them, so that both hash the same. Raises `TypeError` for what JSON cannot hold."""
    return json.loads(json.dumps(arguments))
