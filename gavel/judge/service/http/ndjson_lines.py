"""The body of a batch, line by line: each within the limits of one request, none held longer than it is needed."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from gavel.judge.service.config import ServiceLimits
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.http.request_body import check_headers, too_large, too_slow

MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/json")


async def lines_of(request: Request) -> AsyncIterator[bytes]:
    """The lines that are not blank. Raises `Problem` for one that is too large or too slow to arrive, or too many."""
    check_headers(request, *MEDIA_TYPES)
    limits: ServiceLimits = request.app.state.engine.config.limits
    clock = asyncio.get_running_loop().time
    chunks = request.stream()
    begun: list[bytes] = []
    """The parts of a line that is not complete."""
    size = number = 0
    seconds = limits.body_seconds
    while True:
        began = clock()
        try:
            async with asyncio.timeout(seconds):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise too_slow(limits) from None
        except ClientDisconnect:
            raise Problem(400, "incomplete", "the connection was closed before the body was complete.") from None
        seconds -= clock() - began
        ended, newline, rest = (chunk or b"").rpartition(b"\n")
        if newline or chunk is None:
            lines = b"".join([*begun, ended]).split(b"\n")
            begun, size, seconds = [], 0, limits.body_seconds
            number += len(lines)
            if number > limits.waiting_groups:
                raise _too_many(limits)
            for line in lines:
                if len(line) > limits.body_bytes:
                    raise too_large(limits)
                if line.strip():
                    yield line
        begun.append(rest)
        size += len(rest)
        if size > limits.body_bytes:
            raise too_large(limits)
        if chunk is None:
            return


def _too_many(limits: ServiceLimits) -> Problem:
    return Problem(
        413,
        "too-many-lines",
        f"the batch has more than {limits.waiting_groups:,} lines; those before are accepted.",
        "Send several batches, or raise the service's setting limits.waiting_groups.",
    )
