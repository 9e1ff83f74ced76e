"""The body of a batch, line by line: each within the limits of one request, none held longer than it is needed."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from gavel.judge.service.config import ServiceLimits
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.http.request_body import check_headers, too_large, too_slow

MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/json")


async def lines_of(request: Request) -> AsyncIterator[bytes]:
    """The lines that are not blank. Raises `Problem` for one that is too large, or too slow to arrive."""
    check_headers(request, *MEDIA_TYPES)
    limits: ServiceLimits = request.app.state.engine.config.limits
    rest = b""
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout(limits.body_seconds):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise too_slow(limits) from None
        except ClientDisconnect:
            raise Problem(400, "incomplete", "the connection was closed before the body was complete.") from None
        *lines, rest = (rest + (chunk or b"")).split(b"\n")
        if chunk is None:
            lines, rest = [*lines, rest], b""
        for line in lines:
            if len(line) > limits.body_bytes:
                raise too_large(limits)
            if line.strip():
                yield line
        if len(rest) > limits.body_bytes:
            raise too_large(limits)
        if chunk is None:
            return
