"""Waits until the server of a cluster answers to its key, with its log shown meanwhile."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import httpx

from gavel.trainer.backends.remote.wire import PROTOCOL, PROTOCOL_HEADER
from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
from gavel.trainer.backends.skypilot.errors import ClusterError, ServerEndedError
from gavel.trainer.backends.skypilot.host import ClusterHost, Line, Say
from gavel.trainer.backends.skypilot.secret_values import redacted

_LOOK_SECONDS = 1.0
_JOB_LOOK_SECONDS = 15.0
_ANSWER_SECONDS = 10.0
_TAIL = 15
"""Lines of a log that an error shows."""


async def wait_for_server(record: ClusterRecord, host: ClusterHost, line: Line, say: Say, seconds: float) -> None:
    """Waits until the server answers to the key. Raises `ClusterError`, with the end of the log when its job ended."""
    deadline, looked = time.monotonic() + seconds, time.monotonic()
    tail: deque[str] = deque(maxlen=_TAIL)
    stop: Callable[[], None] | None = None

    def told(text: str) -> None:
        tail.append(text)
        say(text)

    try:
        async with httpx.AsyncClient(base_url=line.url, timeout=_ANSWER_SECONDS, trust_env=False) as client:
            while time.monotonic() < deadline:
                if await _answers(client, record):
                    return
                if stop is None:
                    stop = await asyncio.to_thread(host.follow, record.cluster, record.job, told)
                await asyncio.sleep(_LOOK_SECONDS)
                if time.monotonic() - looked > _JOB_LOOK_SECONDS or record.process is not None:
                    looked = time.monotonic()
                    if await host.job_state(record.cluster, record.job) == "ended":
                        await asyncio.sleep(_LOOK_SECONDS)  # the last lines of its log
                        said = redacted("\n".join(tail), [record.key.get_secret_value()])
                        raise ServerEndedError(
                            f"the server on {record.cluster} has ended. Its log:\n{said}",
                            f"gavel cluster logs {record.cluster} shows all. The machines stop when they are idle; "
                            f"at once: gavel cluster down {record.cluster}",
                        )
    finally:
        if stop is not None:
            await asyncio.to_thread(stop)
    raise ClusterError(
        f"the server on {record.cluster} has not answered for {seconds:.0f} s",
        f"gavel cluster logs {record.cluster} shows what it does; gavel cluster down {record.cluster} ends it.",
    )


async def _answers(client: httpx.AsyncClient, record: ClusterRecord) -> bool:
    """Whether the server answers. Raises `ClusterError` when it is not ours or speaks another protocol."""
    try:
        health = await client.get("/healthz")
        if not health.is_success:
            return False
        spoken = health.json().get("protocol")
        headers = {"Authorization": f"Bearer {record.key.get_secret_value()}", PROTOCOL_HEADER: str(PROTOCOL)}
        admitted = await client.get(f"/v1/uploads/{'0' * 64}", headers=headers)
    except (httpx.TransportError, ValueError):
        return False
    if spoken != PROTOCOL:
        raise ClusterError(
            f"{record.cluster} runs another version of Gavel (protocol {spoken}, here {PROTOCOL})",
            f"End it, and launch it again: gavel cluster down {record.cluster}",
        )
    if admitted.status_code == 401:
        raise ClusterError(
            f"the server on {record.cluster} has another key than was kept here",
            f"End it, and launch it again: gavel cluster down {record.cluster}",
        )
    return admitted.is_success
