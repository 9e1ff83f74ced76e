"""What an environment asks of a server of Atropos' API, ours or atroposlib's: registers, sends groups, asks what waits.

A line that is cut, a server that restarts and one that is full are waited for; what a server refuses is raised.
"""

import gzip
import time
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httpx
from tenacity import AsyncRetrying, RetryError, retry_if_exception, stop_after_delay, wait_random_exponential

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine
from gavel.scenarios.atropos_group import AtroposGroup
from gavel.trainer.atropos.registration import EnvRegistration

_PACKED_FROM = 1024
"""Bytes of a body from which on it is sent with gzip."""
_REQUEST_SECONDS = 60.0


class AtroposServerError(GavelError):
    """A server of Atropos' API cannot be reached, or refuses what it is sent."""


class _Again(Exception):
    """The request may succeed when it is sent again."""


class AtroposClient:
    """One environment at one server; an async context manager."""

    def __init__(self, url: str, *, key: str | None = None, patience: float = 120.0) -> None:
        """`patience`: seconds without an answer after which the server is given up. Raises `AtroposServerError`."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AtroposServerError(f"{url!r} is no address of a server", "Give it as http://127.0.0.1:8000 (--url).")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._patience = patience
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=_REQUEST_SECONDS,
            trust_env=not is_on_this_machine(url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def register(self, registration: EnvRegistration) -> dict[str, Any]:
        """Waits until the server's trainer has started. Gives `env_id`, `starting_step`, `num_steps` and more."""

        async def asked() -> dict[str, Any]:
            answer = await self._once("POST", "/register-env", registration.model_dump())
            if answer.get("status") != "success":
                raise _Again(f"it says: {answer.get('status')}")
            return answer

        return await self._until_answered(asked)

    async def info(self) -> dict[str, Any]:
        """`batch_size` and `max_token_len`; -1 where no trainer has registered."""
        return await self._asked("GET", "/info")

    async def status(self, env_id: int) -> dict[str, Any]:
        """`current_step`, `queue_size` in groups of this environment, and more."""
        return await self._asked("GET", "/status-env", {"env_id": env_id})

    async def send(self, group: AtroposGroup) -> None:
        """Sends a group until it is acknowledged. A server of `gavel serve-atropos` takes one sent again once."""
        await self._asked("POST", "/scored_data", group.model_dump(mode="json"))

    async def disconnect(self, env_id: int) -> None:
        await self._asked("POST", "/disconnect-env", {"env_id": env_id})

    async def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self._until_answered(lambda: self._once(method, path, body))

    async def _until_answered(self, request: Any) -> dict[str, Any]:
        """What `request` gives, asked again while it raises `_Again` and patience lasts."""
        started = time.monotonic()
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception(lambda error: isinstance(error, _Again)),
                wait=wait_random_exponential(multiplier=0.1, max=2.0),
                stop=stop_after_delay(self._patience),
            ):
                with attempt:
                    return await request()
        except RetryError as error:
            reason = error.last_attempt.exception()
            raise AtroposServerError(
                f"{self.url} gave no answer for {time.monotonic() - started:.0f} s: {reason}",
                "Look whether it runs and its trainer has started; `gavel serve-atropos` starts one.",
            ) from error
        raise AssertionError("tenacity ended without an outcome")

    async def _once(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = self._http.build_request(method, path, json=body)
        content = request.content
        if len(content) >= _PACKED_FROM:
            headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
            request = self._http.build_request(method, path, content=gzip.compress(content, 1), headers=headers)
        try:
            answer = await self._http.send(request)
        except httpx.TransportError as error:
            raise _Again(f"{type(error).__name__}: {error}") from error
        if answer.status_code >= 500:
            raise _Again(f"{answer.status_code}: {answer.text:.200}")
        if answer.status_code >= 400:
            raise AtroposServerError(f"{self.url}{path} refused it with {answer.status_code}: {_detail(answer)}")
        try:
            found: object = answer.json()
        except ValueError as error:
            raise _no_such_server(self.url, answer.text) from error
        if not isinstance(found, dict):
            raise _no_such_server(self.url, answer.text)
        return cast("dict[str, Any]", found)


def _detail(answer: httpx.Response) -> str:
    try:
        return f"{answer.json()['detail']!s:.500}"
    except (ValueError, KeyError, TypeError):
        return f"{answer.text:.200}"


def _no_such_server(url: str, text: str) -> AtroposServerError:
    return AtroposServerError(
        f"{url} answers what no server of Atropos' API does: {text:.80}", "Give the address of the API (--url)."
    )
