"""A client of the OpenAI API whose rollouts reach an endpoint of the same process without HTTP.

A turn of a small policy costs less than a request through the client, two HTTP stacks and back. The body and the
answer still go through JSON, so that no object is shared. What fails is asked again through the API's client: errors
and repeats are those of the API.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from openai import APIConnectionError, APITimeoutError
from openai.types.chat.chat_completion import ChatCompletion

from gavel.llm.failures import openai_httpx
from gavel.scenarios.chat_model import RolloutClient
from gavel.trainer.serving.capture import KEY_PREFIX

if TYPE_CHECKING:
    from starlette.applications import Starlette

logger = logging.getLogger(__name__)

Complete = Callable[[Mapping[str, Any]], Coroutine[Any, Any, dict[str, Any]]]
"""A chat completion of a request's body."""


class Served(NamedTuple):
    """An endpoint of this process: its event loop, and what answers there."""

    loop: asyncio.AbstractEventLoop
    complete: Complete
    app: "Starlette"
    holds: Callable[[str], bool]
    """True if a key belongs to a capture that is open there."""


_serving: dict[str, Served] = {}
"""By base URL."""


def serve_in_process(base_url: str, served: Served) -> None:
    """Lets clients of `base_url` in this process ask the endpoint without a socket, until `no_longer_serve`."""
    _serving[base_url] = served


def endpoints() -> dict[str, Served]:
    """The endpoints of this process, by base URL."""
    return dict(_serving)


def no_longer_serve(base_url: str) -> None:
    """Turns asked from now on go over HTTP."""
    _serving.pop(base_url, None)


class InProcessClient(RolloutClient):
    """An OpenAI client of any address; where an endpoint of this process has it, `turn` needs no HTTP."""

    async def turn(self, body: dict[str, Any]) -> ChatCompletion:
        served = endpoints().get(str(self.base_url).rstrip("/"))
        if served is not None and not self.api_key.startswith(KEY_PREFIX):  # a capture is found by a request's headers
            try:
                sent = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
                return ChatCompletion.construct(**json.loads(await self._answer(served, sent)))
            except APIConnectionError:
                raise
            except Exception as error:  # of any type: the API's client tells it as the API does
                logger.debug("asked again: %s", error)
        return await super().turn(body)

    async def _answer(self, served: Served, sent: bytes) -> str:
        """The answer to a body of JSON, which comes as JSON; cancelling it ends the sampling."""

        async def answered() -> str:
            return json.dumps(await served.complete(json.loads(sent)))

        limit = self.timeout.read if isinstance(self.timeout, openai_httpx.Timeout) else self.timeout
        request = openai_httpx.Request("POST", f"{self.base_url}chat/completions")
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answered(), served.loop))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise APITimeoutError(request=request) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise APIConnectionError(message="the endpoint is closing", request=request) from error
