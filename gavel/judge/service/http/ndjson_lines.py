"""The body of a batch, line by line: each within the limits of one request, none held longer than it is needed."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from gavel.judge.service.config import ServiceLimits
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.http.request_body import check_headers, too_large, too_slow

MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/json")


async def lines_of(request: Request) -> AsyncIterator[bytes | Problem]:
    """The lines that are not blank, with a `Problem` in the place of each that is too large.

    One that is too slow to arrive, or one too many, is a `Problem` too, and the last. Raises `Problem` for headers that
    are not right, and when the client is gone.
    """
    check_headers(request, *MEDIA_TYPES)
    limits: ServiceLimits = request.app.state.engine.config.limits
    clock = asyncio.get_running_loop().time
    chunks = request.stream()
    begun: list[bytes] = []
    """The parts of a line that is not complete."""
    is_cut = False
    """Whether that line is too large: the rest of it is dropped."""
    size = number = 0
    seconds = limits.body_seconds
    while True:
        began = clock()
        try:
            async with asyncio.timeout(seconds):
                chunk = await anext(chunks, None)
        except TimeoutError:
            yield too_slow(limits)
            return
        except ClientDisconnect:
            raise Problem(400, "incomplete", "the connection was closed before the body was complete.") from None
        seconds -= clock() - began
        ended, newline, rest = (chunk or b"").rpartition(b"\n")
        if newline or chunk is None:
            lines = b"".join([*begun, ended]).split(b"\n")
            if is_cut:
                yield too_large(limits)
                is_cut, lines[0] = False, b""
            begun, size, seconds = [], 0, limits.body_seconds
            number += len(lines)
            if number > limits.waiting_groups:
                yield _too_many(limits)
                return
            for line in lines:
                if len(line) > limits.body_bytes:
                    yield too_large(limits)
                elif line.strip():
                    yield line
        size += len(rest)
        is_cut = size > limits.body_bytes
        if is_cut:
            begun.clear()
        else:
            begun.append(rest)
        if chunk is None:
            return


def _too_many(limits: ServiceLimits) -> Problem:
    return Problem(
        413,
        "too-many-lines",
        f"the batch has more than {limits.waiting_groups:,} lines; those before are accepted.",
        "Send several batches, or raise the service's setting limits.waiting_groups.",
    )
