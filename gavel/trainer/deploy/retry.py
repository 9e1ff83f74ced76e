"""Requests to a host's API, repeated while it is busy or broken.

A request that reads, replaces or deletes may be sent again. One that creates is sent again only when the host refused
it before doing anything (429): after a 5xx or a timeout it may have been carried out, so the caller looks the thing up
by its name first, as `DeploymentRecord.once` does when the same command is given again.
"""

import email.utils
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Any, TypeVar, cast
from urllib.request import getproxies

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from gavel.base.network import TRANSPORT_ERRORS
from gavel.base.secrets import hide_secrets, without_secrets
from gavel.trainer.deploy.errors import DeployError

logger = logging.getLogger(__name__)
T = TypeVar("T")
_TOLD_AFTER = 3
"""Attempts that failed, after which it is told that the request is repeated."""
PATIENCE = 120.0
"""Seconds that one request is repeated."""
GOES_ON = "The same command goes on where it was."
_LONGEST_PAUSE = 60.0
_backoff = wait_random_exponential(multiplier=0.25, max=20)


class HostRefusal(Exception):
    """An answer of a host's API that is an error."""

    def __init__(self, status: int, text: str, retry_after: str = "") -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        """Of HTTP; 0 = there was no answer."""
        self.text = text
        self.retry_after = retry_after


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later. Knows the `status_code` of SDKs' errors too."""
    status = status_of(error)
    return status == 0 or status in (408, 425, 429) or (status is not None and status >= 500)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error tells; 0 where no answer came, None where it is no error of HTTP."""
    if isinstance(error, HostRefusal):
        return error.status
    if isinstance(error, TRANSPORT_ERRORS):
        return 0
    response: Any = getattr(error, "response", None)
    for found in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(found, int):
            return found
    is_cut = type(error).__name__ in ("APIConnectionError", "APITimeoutError", "ConnectionError", "ConnectTimeout")
    return 0 if is_cut else None


async def repeated(
    ask: Callable[[], Awaitable[T]],
    *,
    creates: bool = False,
    patience: float = PATIENCE,
    find: Callable[[], Awaitable[T | None]] | None = None,
) -> T:
    """What `ask` gives, asked again after errors that pass, for `patience` seconds; then the last error.

    `creates`: it is not idempotent, so after a 5xx or a cut line `find` is asked whether it was made after all; without
    `find` the error is raised.
    """

    def again(error: BaseException) -> bool:
        return is_passing(error) and (not creates or find is not None or status_of(error) == 429)

    def is_over(state: RetryCallState) -> bool:
        return (state.seconds_since_start or 0.0) + state.upcoming_sleep > patience

    def tell(state: RetryCallState) -> None:
        if state.attempt_number == _TOLD_AFTER and state.outcome is not None:
            said = without_secrets(str(state.outcome.exception()))[:300]
            logger.warning("no answer yet (%s); trying again for %.0f s", said, patience)

    failed = False
    attempts = AsyncRetrying(
        retry=retry_if_exception(again), wait=_pause, stop=is_over, before_sleep=tell, reraise=True
    )
    async for attempt in attempts:
        with attempt:
            if failed and creates and find is not None:
                found = await find()
                if found is not None:
                    return found
            failed = True
            return await ask()
    raise AssertionError("tenacity gives a result or raises")


async def json_request(client: httpx.AsyncClient, method: str, path: str, body: Any = None, **given: Any) -> Any:
    """The JSON of an answer (None for an empty one). Raises `HostRefusal`; sends once."""
    try:
        response = await client.request(method, path, json=body, **given)
    except httpx.TransportError as error:
        raise HostRefusal(0, f"{type(error).__name__} {error}".strip()) from error
    if not response.is_success:
        raise HostRefusal(response.status_code, _message(response), response.headers.get("retry-after", ""))
    try:
        return response.json() if response.content else None
    except ValueError as error:
        raise HostRefusal(response.status_code, _PAGE if "html" in response.text.lower() else _NO_JSON) from error


def refused(what: str, error: BaseException, remedies: dict[int, str] | None = None) -> DeployError:
    """The error for a user: `what` could not be done, what the host says, and what to do."""
    status = status_of(error)
    hide_secrets(error)
    told = without_secrets(_said(error))
    if told.lstrip().lower().startswith(("<!doctype", "<html")):
        told = _PAGE
    remedy = (remedies or {}).get(status or 0) or _REMEDIES.get(status or 0, "")
    if status == 0 and getproxies():
        remedy = f"Requests go through the proxy of the environment (HTTPS_PROXY). {remedy}"
    if not remedy:
        remedy = "Give the same command again: it goes on where it was." if is_passing(error) else "See docs/deploy.md."
    return DeployError(f"{what}: {f'{status} ' if status else ''}{told}", remedy)


@contextmanager
def no_pages(host: str) -> Generator[None]:
    """Raises `DeployError` where an SDK took a page of HTML for an answer: it hands out the text as it is."""
    try:
        yield
    except (AttributeError, JSONDecodeError) as error:
        if isinstance(error, AttributeError) and not isinstance(error.obj, str):
            raise
        raise DeployError(f"{host} answers with {_PAGE}", _REMEDIES[200]) from error


_NO_JSON = "what it answers is no JSON"
_PAGE = "a web page, not an answer of its API: a proxy or another server answers there"
_REMEDIES = {
    200: f"Check the address, and a proxy or a login page before it. {GOES_ON}",
    0: "Check the address and the network; the same command goes on where it was.",
    401: f"Check the API key in the environment or in .env: it is wrong, or has expired. {GOES_ON}",
    402: f"Add credit to the account. {GOES_ON}",
    403: f"The key may not do this: check its rights and its project. {GOES_ON}",
}


def _said(error: BaseException) -> str:
    """What the host says, without what its SDK puts around it."""
    if isinstance(error, HostRefusal):
        return error.text
    body: Any = getattr(error, "body", None)
    found = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    nested: Any = found.get("error", found)
    message: Any = cast("dict[str, Any]", nested).get("message") if isinstance(nested, dict) else nested
    if isinstance(message, str) and message:
        return message[:300]
    return (str(error).splitlines() or [type(error).__name__])[0]


def _message(response: httpx.Response) -> str:
    """What the body says, shortened."""
    try:
        body: Any = response.json()
    except ValueError:
        return response.text[:300] or response.reason_phrase
    if isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        nested: Any = fields.get("error")
        inner = cast("dict[str, Any]", nested).get("message") if isinstance(nested, dict) else nested
        for found in (inner, fields.get("message"), fields.get("detail")):
            if isinstance(found, str):
                return found[:300]
    return response.text[:300]


def _pause(state: RetryCallState) -> float:
    """Seconds: the host's Retry-After, or exponential backoff with jitter."""
    error = state.outcome.exception() if state.outcome else None
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    asked = _seconds(error.retry_after if isinstance(error, HostRefusal) else str(headers.get("retry-after", "")))
    return _backoff(state) if asked is None else min(asked, _LONGEST_PAUSE)


def _seconds(retry_after: str) -> float | None:
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
