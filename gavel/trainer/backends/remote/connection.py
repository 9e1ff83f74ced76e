"""Requests to a server of the remote backend, sent again until they succeed, for as long as the client is patient.

A line that is cut and a server that restarts or is busy cost time alone: a job is known by its id. What no later
attempt can mend is raised at once: a certificate that is not trusted, an answer that no server of `gavel backend`
gives.
"""

import io
import logging
import ssl
import threading
import weakref
from collections.abc import Callable
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
    PROTOCOL,
    PROTOCOL_HEADER,
    WAIT_SECONDS,
    Fault,
    Job,
    JobState,
    RemoteBackendError,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Again(Exception):
    """The request may succeed when it is sent again."""


def _passes(error: BaseException) -> bool:
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or _tls_error(error) is not None:
        return False
    return isinstance(error, Again | httpx.TransportError)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The error of TLS that kept a connection from being made."""
    error = error if isinstance(error, httpx.ConnectError) else None
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 6 * WAIT_SECONDS
"""Seconds without a byte after which a connection counts as broken."""


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

    def run(self, key: tuple[str, str], job: Job, groups: bytes, abandoned: threading.Event) -> JobState:
        """Sends the job with its groups, and waits until it is done.

        Raises what it failed with, and `RemoteBackendError` soon after `abandoned` is set.
        """
        self._calls.add(abandoned)
        path, content = f"{model_path(key)}/jobs", job.model_dump_json().encode() + b"\n" + groups

        def submit() -> JobState:
            answer = self._client.post(path, content=io.BytesIO(content))  # bytes are copied whole at each send
            return JobState.model_validate(self._check_answer(answer).json())

        def wait() -> JobState | None:
            """Returns None if the server was restarted since the job was sent."""
            answer = self._client.get(f"{path}/{job.id}", params={"wait": WAIT_SECONDS})
            return None if answer.status_code == 404 else JobState.model_validate(self._check_answer(answer).json())

        state = self._repeat(submit, abandoned)
        while state.state == "running":
            state = self._repeat(wait, abandoned) or self._repeat(submit, abandoned)
        if state.error is not None:
            state.error.throw()
        return state

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON that is there."""
        return self._repeat(lambda: self._check_answer(self._client.get(path, params=parameters)).json())

    def fetch(self, path: str, file: Path) -> None:
        """Writes what is there into `file`, going on with what it holds."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # also where there is nothing to come
        closed = threading.Event()

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
                        self._check_awaited(closed)

        self._repeat(fetch, closed)

    def _repeat(self, request: Callable[[], T], abandoned: threading.Event | None = None) -> T:
        """The result of `request`, which is repeated while its errors may pass: until it succeeds, the patience is
        over, or `abandoned` is set. Raises `RemoteBackendError`, and what `request` raises."""
        abandoned = abandoned or threading.Event()
        self._calls.add(abandoned)

        def tell(state: Any) -> None:
            if state.attempt_number == 1:
                error = state.outcome.exception()
                why = error if str(error) else type(error).__name__
                logger.warning("%s: %s; trying again for %.0f s", self.url, why, self._patience)

        retrying = Retrying(
            retry=retry_if_exception(_passes),
            wait=wait_random_exponential(multiplier=0.1, max=5.0),
            stop=stop_any(stop_after_delay(self._patience), stop_when_event_set(abandoned)),
            before_sleep=tell,
            sleep=sleep_using_event(abandoned),
            reraise=True,
        )
        self._check_awaited(abandoned)
        try:
            return retrying(request)
        except (Again, httpx.HTTPError) as error:
            self._check_awaited(abandoned)
            raise self._error(error) from error
        except RuntimeError as error:  # httpx: the client was closed
            self._check_awaited(abandoned)
            raise RemoteBackendError(
                f"the client of {self.url} was closed", "Make another RemoteBackend, and register the model with it."
            ) from error
        except ValueError as error:
            raise RemoteBackendError(
                f"{self.url} answers what no server of `gavel backend` answers: {error}",
                "Check the address; have both sides the same version of Gavel?",
            ) from error

    def _check_awaited(self, abandoned: threading.Event) -> None:
        if abandoned.is_set():
            raise RemoteBackendError(
                f"the call to {self.url} was given up", "It may be done there: register the model again."
            )

    def _error(self, error: Exception) -> RemoteBackendError:
        reason = str(error) or type(error).__name__
        if _tls_error(error) is not None:
            return RemoteBackendError(
                f"{self.url} does not speak TLS, or its certificate is not trusted: {reason}",
                "For a server without TLS give http://. Set SSL_CERT_FILE to the certificate of its authority, or to "
                "its own when it signed itself. One of another time: compare both machines' clocks, or renew it.",
            )
        if not _passes(error):
            return RemoteBackendError(f"{self.url} cannot be asked: {reason}", "Check the address and the key.")
        return RemoteBackendError(
            f"{self.url} has not answered for {self._patience:.0f} s: {reason}",
            "Does `gavel backend` run there, and does a line lead to it? The run goes on when it is back.",
        )

    def _check_answer(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        fault, status = _fault(answer), answer.status_code
        if status in _PASSING and (fault is None or status != 500):  # a 500 of the server itself comes again
            raise Again(fault.message if fault else f"status {status}")
        if fault is not None:
            fault.throw()
        remedy = (
            "Is it a server of `gavel backend`, of the version that is here, at this very address: without /v1, and "
            "not one that redirects? A proxy before it must take large requests (nginx: client_max_body_size 0)."
        )
        raise RemoteBackendError(f"{self.url} answered with status {status}", remedy)


def model_path(key: tuple[str, str]) -> str:
    return "/v1/models/" + "/".join(quote(part, safe="") for part in key)


def _fault(answer: httpx.Response) -> Fault | None:
    try:
        return Fault.model_validate(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return None
