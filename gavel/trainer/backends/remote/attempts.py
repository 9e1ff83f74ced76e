"""One request, or several that belong together, sent again until they succeed, for as long as the client is patient.

A line that is cut and a server that restarts are waited for. What no later attempt can mend is raised at once: a
certificate that is not trusted, an answer that no server of `gavel backend` gives.
"""

import logging
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
from tenacity import Retrying, retry_if_exception, wait_random_exponential

from gavel.trainer.backends.remote.address import RemoteBackendError

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
