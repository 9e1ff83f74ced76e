"""Replies as they are sent: JSON, or server-sent events, each a line of JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable

from starlette.responses import Response, StreamingResponse

from gavel.llm.types import Message
from gavel.trainer.serving.chat_errors import REFUSED, Refusal, refusal


def json_reply(content: Message, status: int = 200) -> Response:
    """In ASCII: sampled arguments may hold half a surrogate pair, which no other encoding takes."""
    return Response(json.dumps(content), status, media_type="application/json")


def plain_line(event: Message) -> str:
    """An event without a name."""
    return f"data: {json.dumps(event)}\n\n"


def named_line(event: Message) -> str:
    """An event whose name is its type."""
    return f"event: {event['type']}\n{plain_line(event)}"


async def streamed(
    events: AsyncIterator[Message],
    line: Callable[[Message], str],
    failure: Callable[[Refusal], Message],
    end: Iterable[str] = (),
) -> Response:
    """A reply of `events`, then `end`. What fails before the first event raises; later it is told by `failure`."""
    first = await anext(events, None)

    async def lines() -> AsyncIterator[str]:
        try:
            if first is not None:
                yield line(first)
            async for event in events:
                yield line(event)
            for last in end:
                yield last
        except asyncio.CancelledError:  # the client has gone, or the server is closing
            raise
        except REFUSED as error:
            yield line(failure(refusal(error)))

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
