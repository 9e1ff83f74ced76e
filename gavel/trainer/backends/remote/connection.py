"""Requests to a server of the remote backend, sent again until they succeed, for as long as the client is patient.

A line that is cut and a server that restarts or is busy cost time alone: jobs and the parts of uploads are known by
their hashes. What no later attempt can mend is raised at once: a certificate that is not trusted, an answer that no
server of `gavel backend` gives.
"""

import hashlib
import json
import logging
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_random_exponential,
)

from gavel.base.network import is_on_this_machine
from gavel.trainer.backends.remote.wire import (
    PART_BYTES,
    PROTOCOL,
    PROTOCOL_HEADER,
    WAIT_SECONDS,
    DamagedUploadError,
    Fault,
    Job,
    JobState,
    RemoteBackendError,
    UploadMissingError,
)


def hash_parts(file: Path) -> list[str]:
    """SHA-256 of each part of a file."""
    with file.open("rb") as stream:
        return [hashlib.sha256(part).hexdigest() for part in iter(lambda: stream.read(PART_BYTES), b"")]


logger = logging.getLogger(__name__)
T = TypeVar("T")


class Again(Exception):
    """The request may succeed when it is sent again."""


class AbandonedError(RemoteBackendError):
    """Nobody waits for the request any more, or the client was closed meanwhile."""


class Attempts:
    """The attempts of one call: until it succeeds, `patience` seconds are over, or `abandoned` is set."""

    def __init__(self, url: str, patience: float, abandoned: threading.Event) -> None:
        self._url, self._patience, self._abandoned = url, patience, abandoned

    def check(self) -> None:
        """Raises `AbandonedError` once nobody waits."""
        if self._abandoned.is_set():
            raise AbandonedError(
                f"the call to {self._url} was given up", "It may be done there: register the model again."
            )

    def __call__(self, request: Callable[[], T]) -> T:
        """Returns the result of `request`, retried while errors are transient. Raises
        `RemoteBackendError`, and what `request` raises."""
        retrying = Retrying(
            retry=retry_if_exception(_passes),
            wait=wait_random_exponential(multiplier=0.1, max=5.0),
            stop=stop_any(stop_after_delay(self._patience), stop_when_event_set(self._abandoned)),
            before_sleep=self._tell,
            sleep=sleep_using_event(self._abandoned),
            reraise=True,
        )
        self.check()
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

    def _tell(self, state: Any) -> None:
        if state.attempt_number == 1:
            error = state.outcome.exception()
            why = error if str(error) else type(error).__name__
            logger.warning("%s: %s; trying again for %.0f s", self._url, why, self._patience)

    def _error(self, error: Exception) -> RemoteBackendError:
        reason = str(error) or type(error).__name__
        cause = _ssl_error(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return RemoteBackendError(
                f"the certificate of {self._url} is not trusted: {cause.verify_message or reason}",
                "Set SSL_CERT_FILE to the certificate of its authority, or to its own when it signed itself. One of "
                "another time: compare the clocks of both machines (date -u), or renew it.",
            )
        if cause is not None:
            return RemoteBackendError(f"{self._url} does not speak TLS: {reason}", "Is its address http://…?")
        if not _passes(error):
            return RemoteBackendError(f"{self._url} cannot be asked: {reason}", "Check the address and the key.")
        return RemoteBackendError(
            f"{self._url} has not answered for {self._patience:.0f} s: {reason}",
            "Does `gavel backend` run there, and does a line lead to it? The run goes on when it is back.",
        )


def _passes(error: BaseException) -> bool:
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        return False
    if isinstance(error, httpx.ConnectError) and _ssl_error(error) is not None:
        return False
    return isinstance(error, Again | httpx.TransportError)


def _ssl_error(error: BaseException | None) -> ssl.SSLError | None:
    """The error of TLS that caused this one."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 6 * WAIT_SECONDS
"""Seconds without a byte after which a connection counts as broken."""
_UPLOADS = 3
"""Times that a part is sent which arrives altered, and a file that is gone when its job begins."""


class Connection:
    """Connection to one server; thread-safe."""

    def __init__(self, url: str, key: str, patience: float) -> None:
        """`patience`: seconds without an answer after which the server is given up."""
        self.url = url
        self._patience = patience
        self._calls: weakref.WeakSet[threading.Event] = weakref.WeakSet()
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
        files: Mapping[Path, list[str]],
        spare: Mapping[Path, list[str]],
        abandoned: threading.Event,
    ) -> JobState:
        """Sends the job, with its files first, and waits until it is done. Raises what it failed with.

        `files` and `spare`: the parts of each by path; those of `spare` are sent only when the server asks for them.
        Raises `AbandonedError` soon after `abandoned` is set.
        """
        attempts = self._attempts(abandoned)
        for left in reversed(range(_UPLOADS)):
            for path, parts in files.items():
                self._upload(path, parts, attempts)
            try:
                return self._run_job(f"{model_path(key)}/jobs", job, attempts)
            except UploadMissingError:
                if not left:
                    raise
            files = {**files, **spare}
        raise AssertionError

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON that is there."""
        return self._attempts()(lambda: self._check_answer(self._client.get(path, params=parameters)).json())

    def fetch(self, path: str, file: Path) -> None:
        """Writes what is there into `file`, going on with what it holds."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # also where there is nothing to come
        attempts = self._attempts()

        def fetch() -> None:
            start = file.stat().st_size
            with self._client.stream("GET", path, headers={"Range": f"bytes={start}-"}) as answer:
                if answer.status_code == 416:  # all of it is there
                    return
                if answer.status_code not in (200, 206):
                    answer.read()
                    self._check_answer(answer)
                with file.open("ab" if answer.status_code == 206 else "wb") as out:
                    for part in answer.iter_raw():
                        out.write(part)
                        attempts.check()

        attempts(fetch)

    def _attempts(self, abandoned: threading.Event | None = None) -> Attempts:
        abandoned = abandoned or threading.Event()
        self._calls.add(abandoned)
        return Attempts(self.url, self._patience, abandoned)

    def _run_job(self, path: str, job: Job, attempts: Attempts) -> JobState:
        def submit() -> JobState:
            answer = self._client.post(path, json=job.model_dump(mode="json"))
            return JobState.model_validate(self._check_answer(answer).json())

        def wait() -> JobState | None:
            """Returns None if the server was restarted since the job was sent."""
            answer = self._client.get(f"{path}/{job.id}", params={"wait": WAIT_SECONDS})
            return None if answer.status_code == 404 else JobState.model_validate(self._check_answer(answer).json())

        state = attempts(submit)
        while state.state == "running":
            state = attempts(wait) or attempts(submit)
        if state.error is not None:
            state.error.throw()
        return state

    def _upload(self, file: Path, parts: list[str], attempts: Attempts) -> None:
        missing = set(attempts(lambda: self._check_answer(self._client.post("/v1/uploads", json=parts)).json()))
        with file.open("rb") as stream:
            for number, sha256 in enumerate(parts):
                if sha256 in missing:
                    stream.seek(number * PART_BYTES)
                    self._put(sha256, stream.read(PART_BYTES), attempts)

    def _put(self, sha256: str, part: bytes, attempts: Attempts) -> None:
        for left in reversed(range(_UPLOADS)):
            try:
                attempts(lambda: self._check_answer(self._client.put(f"/v1/uploads/{sha256}", content=part)))
                return
            except DamagedUploadError:
                if not left:
                    raise

    def _check_answer(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        fault, status = _fault(answer), answer.status_code
        if status in _PASSING and (fault is None or status != 500):  # a 500 of the server itself comes again
            raise Again(fault.message if fault else f"status {status}")
        if fault is not None:
            fault.throw()
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
    try:
        return Fault.model_validate(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return None


def canonical(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the server parses them, so that both hash the same; a number that is not finite becomes null.

    Raises `RemoteBackendError` for what JSON cannot hold.
    """
    try:
        return json.loads(json.dumps(arguments, default=_plain), parse_constant=lambda _: None)
    except (TypeError, ValueError) as error:
        raise RemoteBackendError(f"an argument cannot be sent: {error}", "Give numbers, strings, lists.") from error


def _plain(value: object) -> int | float:
    """A number of another library."""
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise TypeError(f"{value!r:.80} is no number and no string")
