"""Captures what any client samples: whatever runs inside, its turns become one trajectory with exact tokens.

    async with model.capture() as capture:
        client = AsyncOpenAI(base_url=capture.base_url, api_key=capture.api_key)
        ...                                    # any framework, in any process
    capture.trajectory

The endpoint tells requests by their key, so captures run beside each other.
"""

import contextlib
import math
import os
from types import TracebackType
from typing import Any, Self, cast

from openai import AsyncOpenAI, OpenAIError
from openai._types import RequestOptions

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine, pass_proxies, past_proxies
from gavel.scenarios.trajectory import Trajectory

_REQUEST_SECONDS = 60.0


class CaptureError(GavelError):
    """A capture cannot be opened, read or closed."""


class Capture:
    """An async context manager; `trajectory` is there when it has ended."""

    def __init__(self, client: AsyncOpenAI, patience: float = 60.0) -> None:
        """`client`: of the endpoint. Requests in flight at the end have `patience` seconds.

        Raises `CaptureError` for what is no number of seconds.
        """
        if not (math.isfinite(patience) and patience >= 0):
            raise CaptureError(f"patience={patience} is no number of seconds", "Give 0 or more.")
        self._client = client
        self._patience = patience
        self._key: str | None = None
        self._trajectory: Trajectory | None = None
        self.base_url = str(client.base_url).rstrip("/")
        """Where OpenAI's and Anthropic's clients send their requests."""

    @property
    def api_key(self) -> str:
        """The key of this capture, which ends with it."""
        if self._key is None:
            raise CaptureError("the capture is not open", "Use it as `async with model.capture() as capture:`.")
        return self._key

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which OpenAI's and Anthropic's clients in another process come here.

        To this machine they come past a proxy: `NO_PROXY` and `no_proxy` extend those of this process.
        """
        return {
            **(past_proxies(os.environ) if is_on_this_machine(self.base_url) else {}),
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
        }

    @property
    def trajectory(self) -> Trajectory:
        """What was sampled. The main history is the conversation that lasted longest."""
        if self._trajectory is None:
            raise CaptureError("the capture has not ended", "Read its trajectory after the `async with` block.")
        return self._trajectory

    async def __aenter__(self) -> Self:
        if self._key is not None:
            raise CaptureError("the capture was used before", "Call model.capture() for each rollout.")
        if is_on_this_machine(self.base_url):
            pass_proxies()  # of a framework's clients in this process
        self._key = (await self._ask("/captures"))["api_key"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._trajectory = await self._closed(self._patience)
            return
        with contextlib.suppress(CaptureError):  # the error of the block is the one to see
            self._trajectory = await self._closed(0.0)
            self._trajectory.status = "failed"
            self._trajectory.status_reason = f"{type(error).__name__}: {error}"

    async def _closed(self, patience: float) -> Trajectory:
        answer = await self._ask(f"/captures/{self.api_key}", patience)
        trajectory = Trajectory.model_validate(answer["trajectory"])
        if answer["unfinished"]:
            trajectory.metrics["requests_unfinished"] = answer["unfinished"]
            trajectory.log(f"{answer['unfinished']} requests were not answered when the capture ended")
        return trajectory

    async def _ask(self, path: str, patience: float | None = None) -> dict[str, Any]:
        """Opens a capture, or closes one with `patience`."""
        options: RequestOptions = {"max_retries": 0, "timeout": _REQUEST_SECONDS + (patience or 0.0)}
        try:
            if patience is None:
                answer = await self._client.post(path, cast_to=object, options=options)
            else:
                answer = await self._client.delete(
                    path, cast_to=object, options=options | {"params": {"patience": patience}}
                )
        except (OpenAIError, ValueError) as error:
            raise CaptureError(
                f"{self.base_url}{path} failed: {type(error).__name__}: {error}",
                "Does the backend still run, and does it serve captures?",
            ) from error
        return cast("dict[str, Any]", answer)
