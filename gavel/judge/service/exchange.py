"""One request to a judge service, sent again until there is an answer, a refusal, or no time left.

    POST /v1/score, 503 -> POST again -> 202 -> GET /v1/judgements/{id}?wait=… -> 200

What may pass (a broken connection, a busy or restarting service) is sent again after a growing pause; what is accepted
is asked for at its own address. `JudgeClient` drives it, with or without an event loop.
"""

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from tenacity import RetryCallState, retry_if_exception_type, wait_random_exponential

from gavel.scenarios.errors import JudgeError

_logger = logging.getLogger("gavel.client")
_PROBLEM = "urn:gavel:problem:"
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_LASTING = {"judge-failed", "judge-stopped", "service-error"}
"""Kinds of problems that sending again does not mend, whatever their status."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_LONGEST_REQUEST = 300.0
"""Seconds that one request is waited for; the next one goes on waiting for the same judgement."""
_CONNECT_SECONDS = 10.0
_HALF = re.compile("[\ud800-\udfff]")


class RefusalError(JudgeError):
    """The service refuses a request, and will refuse it again."""

    def __init__(self, message: str, remedy: str, kind: str = "") -> None:
        super().__init__(message, remedy)
        self.kind = kind
        """Of its problem, such as "group-full"; empty where it names none."""


class Again(Exception):
    """The request may succeed when it is sent again, after `pause` seconds at least."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause

    @classmethod
    def after(cls, error: httpx.TransportError) -> "Again":
        return cls(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


class _NotYet(Again):
    """The group is accepted, and its judgement is waited for."""


class Exchange:
    """The requests for one answer."""

    def __init__(
        self,
        url: str,
        path: str,
        body: Mapping[str, Any],
        *,
        holds: str,
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`holds`: a field of the answer, by which it is known. `deadline`: seconds for it, with all repetitions.

        Raises `JudgeError` for a body that JSON cannot hold.
        """
        self._url = url
        sent = {"Content-Type": "application/json", **(headers or {})}
        self._first = {"method": "POST", "url": url + path, "content": _json(body), "headers": sent}
        self._holds = holds
        self._seconds = deadline
        self._deadline = time.monotonic() + deadline
        self._place: str | None = None
        self._told = False
        self.answer: dict[str, Any] = {}
        """Empty until `read` has taken one."""

    @property
    def policy(self) -> dict[str, Any]:
        """When a request is sent again, as tenacity takes it."""
        growing = wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE)

        def pause(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            return max(growing(state), error.pause if isinstance(error, Again) else 0.0)

        def stop(state: RetryCallState) -> bool:
            return state.upcoming_sleep >= self._left

        def tell(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if not self._told and not isinstance(error, _NotYet):
                self._told = True
                _logger.warning("%s: %s; it is asked again for %.0f s", self._url, error, self._left)

        tried = retry_if_exception_type(Again)
        return {"retry": tried, "wait": pause, "stop": stop, "before_sleep": tell, "reraise": True}

    @property
    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def request(self) -> dict[str, Any]:
        """The next request: what is asked, or once it is accepted the question for its answer."""
        seconds = max(min(self._left, _LONGEST_REQUEST), 0.1)
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS), pool=None)
        if self._place is None:
            return {**self._first, "timeout": timeout}
        url = httpx.URL(self._place).copy_merge_params({"wait": max(seconds - 1.0, 0.0)})
        return {"method": "GET", "url": url, "timeout": timeout}

    def read(self, response: httpx.Response) -> None:
        """Takes the answer. Raises `Again` when there is none yet, `RefusalError` when there will be none."""
        try:
            found: dict[str, Any] = response.json()
        except ValueError:
            found = {}
        if response.status_code == 200 and self._holds in found:
            self.answer = found
        elif response.status_code == 202:
            place = response.headers.get("location") or f"/v1/judgements/{found['id']}"
            self._place = self._url + place if place.startswith("/") else place
            raise _NotYet("the group is not judged yet")
        else:
            kind = str(found.get("type", "")).removeprefix(_PROBLEM)
            why = str(found.get("detail") or f"the service answered with status {response.status_code}")
            if response.status_code in _PASSING and kind not in _LASTING:
                pause = response.headers.get("retry-after", "")
                raise Again(why, float(pause) if pause.isdigit() else 0.0)
            raise RefusalError(why, str(found.get("remedy") or f"Is {self._url} a judge service?"), kind)

    def too_late(self, error: Again) -> JudgeError:
        return JudgeError(
            f"the group was not judged within {self._seconds:g} s: {error}.",
            f"Is the service at {self._url} running? Raise the client's deadline if its judge is slow.",
        )


def _json(body: Mapping[str, Any]) -> bytes:
    """The body as all read it: NaN and infinities as text, and U+FFFD for halves of a character."""
    try:
        return to_json(body, inf_nan_mode="strings")
    except PydanticSerializationError:  # for halves of a character, or for what JSON cannot hold
        pass
    try:
        text = json.dumps(to_jsonable_python(body), ensure_ascii=False)
    except PydanticSerializationError as error:
        raise JudgeError(
            f"the group cannot be sent: {error}.", "Messages and tools hold texts, numbers, lists and dicts alone."
        ) from error
    return to_json(json.loads(_HALF.sub("\ufffd", text)), inf_nan_mode="strings")
