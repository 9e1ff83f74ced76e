"""Requests to a server of the remote backend, sent again until they succeed, for as long as the client is patient.

A line that is cut and a server that restarts or is busy cost time alone: jobs are known by their ids, and uploads go on
where they were cut off. What no later attempt can mend is raised at once: a certificate that is not trusted, an answer
that no server of `gavel backend` gives.
"""

import contextlib
import itertools
import json
import logging
import math
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from tenacity import Retrying, retry_if_exception, wait_random_exponential

from gavel.base.network import is_on_this_machine
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.remote.wire import (
    HEARTBEAT_SECONDS,
    LENGTH_HEADER,
    OFFSET_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    Fault,
    Job,
    JobState,
    RemoteBackendError,
    raise_fault,
)
from gavel.trainer.runs.file_hash import file_sha256


@dataclass(frozen=True, slots=True)
class BatchFile:
    path: Path
    sha256: str
    size: int
    """Bytes."""


@contextmanager
def batch_file(groups: Iterable[TrajectoryGroup]) -> Generator[BatchFile]:
    """Writes the groups into a temporary directory, which is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="gavel-batch-") as directory:
        store = TrajectoryStore(Path(directory, "groups.jsonl.zst"))
        store.extend(groups)
        yield BatchFile(store.path, file_sha256(store.path), store.path.stat().st_size)


logger = logging.getLogger(__name__)
T = TypeVar("T")
_OF_THE_TIME = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


class Again(Exception):
    """The request may succeed when it is sent again."""


class AbandonedError(RemoteBackendError):
    """Nobody waits for the request any more, or the client was closed meanwhile."""


class Attempts:
    """The attempts of one call."""

    def __init__(self, url: str, patience: float, abandoned: threading.Event) -> None:
        """`patience`: seconds without an answer after which the server is given up."""
        self._url = url
        self._patience = patience
        self._abandoned = abandoned
        self._told = False
        self._silent_since = time.monotonic()

    def check(self) -> None:
        """Raises `AbandonedError` once nobody waits."""
        if self._abandoned.is_set():
            raise AbandonedError(
                f"the call to {self._url} was given up",
                "It may be done there: register the model again.",
            )

    def answered(self) -> None:
        """The server is there: patience begins anew."""
        self._silent_since = time.monotonic()
        self._told = False

    def __call__(self, request: Callable[[], T]) -> T:
        """What `request` gives. Raises `RemoteBackendError`, and what `request` raises by itself."""
        retrying = Retrying(
            retry=retry_if_exception(_passes),
            wait=wait_random_exponential(multiplier=0.1, max=5.0),
            stop=lambda _: self._abandoned.is_set() or self._silence > self._patience,
            before_sleep=self._tell,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(request)
        except (Again, httpx.HTTPError) as error:
            self.check()
            raise self._error(error) from error
        except RuntimeError as error:  # httpx: the client was closed
            self.check()
            raise RemoteBackendError(
                f"the client of {self._url} was closed", "Make another RemoteBackend, and register the model with it."
            ) from error
        except ValueError as error:
            raise RemoteBackendError(
                f"{self._url} answers what no server of `gavel backend` answers: {error}",
                "Check the address; have both sides the same version of Gavel?",
            ) from error

    def _sleep(self, seconds: float) -> None:
        self._abandoned.wait(seconds)

    @property
    def _silence(self) -> float:
        return time.monotonic() - self._silent_since

    def _tell(self, state: Any) -> None:
        if not self._told:
            self._told = True
            error = state.outcome.exception()
            why = error if str(error) else type(error).__name__
            logger.warning("%s: %s; trying again for %.0f s", self._url, why, self._patience)

    def _error(self, error: Exception) -> RemoteBackendError:
        reason = str(error) or type(error).__name__
        cause = _cause(error, ssl.SSLError)
        if isinstance(cause, ssl.SSLCertVerificationError):
            remedy = "Set SSL_CERT_FILE to the certificate of its authority, or to its own when it signed itself."
            if cause.verify_code in _OF_THE_TIME:
                remedy = "Compare the clocks of both machines (date -u); if they are right, renew it on the server."
            return RemoteBackendError(
                f"the certificate of {self._url} is not trusted: {cause.verify_message or reason}", remedy
            )
        if cause is not None:
            return RemoteBackendError(f"{self._url} does not speak TLS: {reason}", "Is its address http://…?")
        if not _passes(error):
            return RemoteBackendError(f"{self._url} cannot be asked: {reason}", "Check the address and the key.")
        return RemoteBackendError(
            f"{self._url} has not answered for {self._silence:.0f} s: {reason}",
            "Does `gavel backend` run there, and does a line lead to it? The run goes on when it is back.",
        )


def _passes(error: BaseException) -> bool:
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        return False
    if isinstance(error, httpx.ConnectError) and _cause(error, ssl.SSLError) is not None:
        return False
    return isinstance(error, Again | httpx.TransportError)


def _cause(error: BaseException, kind: type[ssl.SSLError]) -> ssl.SSLError | None:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, kind):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


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
