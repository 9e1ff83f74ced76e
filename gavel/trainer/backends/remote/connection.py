"""Requests to a server of the remote backend. `attempts` sends them again until the server has answered.

A broken line, a server that restarts and one that is busy cost time alone: jobs are known by their ids, and uploads go
on where they were cut off.
"""

import contextlib
import itertools
import json
import math
import threading
from collections.abc import Generator, Iterator, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from gavel.base.network import is_on_this_machine
from gavel.trainer.backends.remote.address import RemoteBackendError
from gavel.trainer.backends.remote.attempts import Again, Attempts
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

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 6 * HEARTBEAT_SECONDS
"""Without a byte, after which a line is taken for broken."""
_PART_BYTES = 1 << 20
_LEAST_BODY = 512 << 10
"""Bytes of a request before which a proxy stands that refuses larger ones; nginx takes 1 MB."""
_UPLOADS = 3
"""Times that a file is sent which arrives altered, or is gone when its job begins."""


class Connection:
    """To one server; may be shared by threads."""

    def __init__(self, url: str, key: str, patience: float) -> None:
        """`patience`: seconds without an answer after which the server is given up."""
        self.url = url
        self._patience = patience
        self._calls: set[threading.Event] = set()
        self._most_body: int | None = None
        """Bytes of one request of an upload."""
        direct: dict[str, httpx.BaseTransport | None] = dict.fromkeys(("http://", "https://", "all://"))
        self._client = httpx.Client(
            base_url=url,
            headers={
                "Authorization": f"Bearer {key}",
                PROTOCOL_HEADER: str(PROTOCOL),
                "Accept-Encoding": "identity",  # hashes are of what is sent
            },
            timeout=httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS),
            mounts=direct if is_on_this_machine(url) else None,  # no proxy of the environment
        )

    def close(self) -> None:
        """Also ends calls that other threads wait for."""
        for call in list(self._calls):
            call.set()
        self._client.close()

    def run(
        self,
        key: tuple[str, str],
        job: Job,
        file: BatchFile | None = None,
        spare: Sequence[BatchFile] = (),
        abandoned: threading.Event | None = None,
    ) -> JobState:
        """Sends the job, with its file first, and waits until it is done. Raises what it failed with.

        `spare`: files that are sent only when the server asks for them. Raises `AbandonedError` soon after the event is
        set.
        """
        with self._attempts(abandoned) as attempts:
            for left in itertools.count(_UPLOADS - 1, -1):
                if file is not None:
                    self._upload(file, attempts)
                state = self._finished(key, job, attempts)
                if state.error is None:
                    return state
                if state.error.type != "UploadMissingError" or not left:
                    raise_fault(state.error)
                for each in spare:
                    self._upload(each, attempts)
            raise AssertionError

    def upload(self, file: BatchFile) -> None:
        """Sends what is not there yet."""
        with self._attempts() as attempts:
            self._upload(file, attempts)

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON that is there."""
        with self._attempts() as attempts:
            return attempts(lambda: self._checked(self._client.get(path, params=parameters)).json())

    def fetch(self, path: str, file: Path) -> None:
        """Writes what is there into `file`, going on with what it holds."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # also where there is nothing to come

        def fetch() -> None:
            start = file.stat().st_size
            with self._client.stream("GET", path, headers={"Range": f"bytes={start}-"}) as answer:
                if answer.status_code == 416:  # all of it is there
                    return
                if answer.status_code not in (200, 206):
                    answer.read()
                    self._checked(answer)
                with file.open("ab" if answer.status_code == 206 else "wb") as out:
                    for part in answer.iter_raw():
                        out.write(part)
                        attempts.check()

        with self._attempts() as attempts:
            attempts(fetch)

    @contextlib.contextmanager
    def _attempts(self, abandoned: threading.Event | None = None) -> Generator[Attempts]:
        event = abandoned or threading.Event()
        self._calls.add(event)
        try:
            yield Attempts(self.url, self._patience, event)
        finally:
            self._calls.discard(event)

    def _finished(self, key: tuple[str, str], job: Job, attempts: Attempts) -> JobState:
        sent = False

        def finished() -> JobState:
            nonlocal sent
            attempts.check()
            # What was sent is asked for: a job that has failed would be begun again.
            state = self._seen(key, job.id) if sent else None
            state = state or self._submit(key, job)
            sent = True
            attempts.answered()
            while state.state not in ("done", "failed"):
                state = self._follow(key, job.id, attempts)
            return state

        return attempts(finished)

    def _submit(self, key: tuple[str, str], job: Job) -> JobState:
        answer = self._client.post(f"{model_path(key)}/jobs", json=job.model_dump(mode="json"))
        return JobState.model_validate(self._checked(answer).json())

    def _seen(self, key: tuple[str, str], job: str) -> JobState | None:
        """None when the server was restarted since the job was sent."""
        answer = self._client.get(f"{model_path(key)}/jobs/{job}", params={"now": "1"})
        return None if answer.status_code == 404 else JobState.model_validate(self._checked(answer).json())

    def _follow(self, key: tuple[str, str], job: str, attempts: Attempts) -> JobState:
        with self._client.stream("GET", f"{model_path(key)}/jobs/{job}") as answer:
            if answer.status_code == 404:
                raise Again("the server was restarted")
            if answer.status_code != 200:
                answer.read()
                self._checked(answer)
            for line in answer.iter_lines():
                attempts.check()
                if line.startswith("data: "):
                    try:
                        state = JobState.model_validate_json(line.removeprefix("data: "))
                    except ValueError as error:
                        raise Again("a line was cut") from error
                    attempts.answered()
                    if state.state in ("done", "failed"):
                        return state
        raise Again("the server closed the line")

    def _upload(self, file: BatchFile, attempts: Attempts) -> None:
        for left in reversed(range(_UPLOADS)):
            fault = attempts(lambda: self._sent(file, attempts))
            if fault is None:
                return
            if not left:
                raise_fault(fault)

    def _sent(self, file: BatchFile, attempts: Attempts) -> Fault | None:
        """The fault of bytes that arrived altered, which the server has removed."""
        path = f"/v1/uploads/{file.sha256}"
        there = _offset(self._checked(self._client.get(path)))
        while there < file.size:
            attempts.check()
            headers = {OFFSET_HEADER: str(there), LENGTH_HEADER: str(file.size)}
            parts = _parts(file.path, there, self._most_body, attempts)
            answer = self._client.patch(path, content=parts, headers=headers)
            if answer.status_code == 413 and self._most_body is None:
                self._most_body = _LEAST_BODY
                continue
            fault = _fault(answer)
            if fault is not None and fault.type == "DamagedUploadError":
                return fault
            if fault is not None and fault.type == "OffsetError":  # an earlier request, cut off, still wrote
                raise Again(fault.message)
            before, there = there, _offset(self._checked(answer))
            if there <= before:
                raise Again("the upload was cut off")
            attempts.answered()
        return None

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        fault, status = _fault(answer), answer.status_code
        if status in _PASSING and (fault is None or status != 500):  # a 500 of the server itself comes again
            raise Again(fault.message if fault else f"status {status}")
        if fault is not None:
            raise_fault(fault)
        remedy = "Is it a server of `gavel backend`, of the version that is here?"
        if answer.has_redirect_location:
            remedy = "It redirects elsewhere: give the address that it redirects to."
        elif status == 404 and httpx.URL(self.url).path.strip("/"):
            remedy = (
                "Leave out what follows host and port, unless a proxy there wants it: /v1 is no part of the address."
            )
        elif status == 413:
            remedy = "A proxy before it refuses requests of 1 MB: raise its limit (nginx: client_max_body_size)."
        raise RemoteBackendError(f"{self.url} answered with status {status}", remedy)


def model_path(key: tuple[str, str]) -> str:
    return "/v1/models/" + "/".join(quote(part, safe="") for part in key)


def _fault(answer: httpx.Response) -> Fault | None:
    if answer.is_success:
        return None
    try:
        return Fault.model_validate(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return None


def _offset(answer: httpx.Response) -> int:
    return int(answer.headers.get(OFFSET_HEADER, "no offset"))  # its ValueError is told as an answer of others


def _parts(file: Path, start: int, most: int | None, attempts: Attempts) -> Iterator[bytes]:
    left = math.inf if most is None else most
    with file.open("rb") as stream:
        stream.seek(start)
        while left > 0 and (part := stream.read(int(min(_PART_BYTES, left)))):
            attempts.check()
            left -= len(part)
            yield part


def canonical(arguments: dict[str, Any]) -> dict[str, Any]:
    """As the server reads them, so that both hash the same; what is no finite number becomes null, as in metrics.

    Raises `RemoteBackendError` for what JSON cannot hold.
    """
    try:
        return _finite(json.loads(json.dumps(arguments, default=_plain)))
    except (TypeError, ValueError) as error:
        raise RemoteBackendError(f"an argument cannot be sent: {error}", "Give numbers, strings, lists.") from error


def _plain(value: object) -> int | float:
    """A number of another library."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{value!r:.80} is no number and no string")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_finite(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
