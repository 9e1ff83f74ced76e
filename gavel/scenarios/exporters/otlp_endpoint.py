"""A collector of OpenTelemetry: OTLP over HTTP, in its JSON form.

    with OtlpEndpoint("http://localhost:4318") as endpoint:
        endpoint.send({"resourceSpans": […]})

What the SDK's environment variables say of headers (keys of a hosted collector) is sent, and never printed.
"""

import json
import os
import time
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import unquote, urlsplit

import httpx

from gavel.llm.errors import GavelError
from gavel.llm.loopback import is_on_this_machine
from gavel.llm.types import Message

_SECONDS = 60.0
_TRIES = 4
_PASSING = (429, 502, 503, 504)
"""Answers after which OTLP's clients try again."""
_LONGEST_WAIT = 30.0
_TOO_LARGE = 413


class OtlpError(GavelError):
    """A collector does not take spans."""


class OtlpEndpoint:
    """The collector at an address; `/v1/traces` is added where it has no path."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        self._url = address if parts.path.strip("/") else f"{address.rstrip('/')}/v1/traces"
        headers = {"content-type": "application/json", **_headers()}
        self._client = httpx.Client(timeout=_SECONDS, headers=headers, trust_env=not is_on_this_machine(address))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def send(self, request: Message) -> None:
        """Sends the spans; tries again when the collector is busy. Raises `OtlpError`."""
        content = json.dumps(request, ensure_ascii=False, allow_nan=False).encode()
        answer = self._post(content)
        for number in range(_TRIES - 1):
            if answer.status_code not in _PASSING:
                break
            time.sleep(_wait(answer, number))
            answer = self._post(content)
        self._check(answer, len(content))

    def _post(self, content: bytes) -> httpx.Response:
        try:
            return self._client.post(self._url, content=content)
        except httpx.HTTPError as error:
            raise OtlpError(
                f"the collector at {self._shown} does not answer: {str(error) or type(error).__name__}",
                "Start it, or give -o FILE.jsonl.",
            ) from error

    def _check(self, answer: httpx.Response, size: int) -> None:
        if answer.is_success:
            refused = _refused(answer)
            if refused:
                raise OtlpError(f"the collector at {self._shown} refused spans: {refused}", "Its log says why.")
            return
        told = " ".join(answer.text.split())[:200]
        remedy = "Check the address, and OTEL_EXPORTER_OTLP_HEADERS for its key."
        if answer.status_code == _TOO_LARGE:
            remedy = f"An attempt takes {size:,} bytes: raise the collector's limit, or give -o FILE.jsonl."
        raise OtlpError(f"the collector at {self._shown} answered {answer.status_code}: {told}", remedy)


def _wait(answer: httpx.Response, number: int) -> float:
    """Seconds to wait, as the collector says."""
    said = answer.headers.get("retry-after", "")
    return min(float(said) if said.isdecimal() else 2.0**number, _LONGEST_WAIT)


def _refused(answer: httpx.Response) -> str:
    """Why spans of a request that was taken are not kept; empty where all are."""
    try:
        told: Any = answer.json()
    except ValueError:
        return ""
    if not isinstance(told, dict):
        return ""
    partial: Any = cast("dict[str, Any]", told).get("partialSuccess")
    if not isinstance(partial, dict):
        return ""
    fields = cast("dict[str, Any]", partial)
    return str(fields.get("errorMessage") or "no reason") if int(fields.get("rejectedSpans") or 0) else ""


def _headers() -> dict[str, str]:
    """As the SDK reads them: `key=value` pairs between commas, percent-encoded."""
    given = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
