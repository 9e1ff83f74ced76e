"""Records a coroutine's requests to chat models, through any client over httpx or httpx2, as one trajectory.

    trajectory = await art.capture_auto_trajectory(answer(question))
    art.auto_trajectory().reward = 1.0            inside the coroutine

The libraries are patched only while recording. A request that continues a recorded conversation extends it; any other
one starts another history.
"""

import importlib
import importlib.util
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion import Choice

from gavel.integrations._conversations import add_turn
from gavel.integrations.art.trajectories import History, Trajectory
from gavel.scenarios.trajectory import as_item

_recording: ContextVar[Trajectory | None] = ContextVar("auto_trajectory", default=None)
_lock = threading.Lock()
_recordings = 0


def auto_trajectory(*, required: bool = False) -> Any:
    """The trajectory being recorded, or None; with `required`, raises `RuntimeError` if there is none."""
    trajectory = _recording.get()
    if trajectory is None and required:
        raise RuntimeError("nothing is recorded here: run this in art.capture_auto_trajectory(…)")
    return trajectory


async def capture_auto_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Runs `coroutine`; returns a trajectory of its requests to chat models."""
    with recording(Trajectory()) as trajectory:
        await coroutine
    return trajectory.finish()


@contextmanager
def recording(trajectory: Trajectory) -> Generator[Trajectory]:
    """Records requests made in the block into `trajectory`."""
    token = _recording.set(trajectory)
    _patch(1)
    try:
        yield trajectory
    finally:
        _patch(-1)
        _recording.reset(token)


@cache
def _sends() -> list[tuple[Any, Any, Any]]:
    """The classes of clients, each with its own `send` and one that records; OpenAI's client uses httpx2, which has the
    names of httpx, from its version 3 on."""
    found: list[tuple[Any, Any, Any]] = []
    for name in ("httpx", "httpx2"):
        if importlib.util.find_spec(name) is not None:
            module: Any = importlib.import_module(name)
            watch = _watcher(module)
            found.append((module.Client, module.Client.send, _recorded(module.Client.send, watch)))
            found.append((module.AsyncClient, module.AsyncClient.send, _recorded_async(module.AsyncClient.send, watch)))
    return found


def _patch(more: int) -> None:
    global _recordings
    with _lock:
        _recordings += more
        for client, own, recorded in _sends():
            client.send = recorded if _recordings else own


def _recorded(send: Any, watch: Any) -> Any:
    def recorded_send(client: Any, request: Any, **options: Any) -> Any:
        return watch(send(client, request, **options), request)

    return recorded_send


def _recorded_async(send: Any, watch: Any) -> Any:
    async def recorded_send(client: Any, request: Any, **options: Any) -> Any:
        return watch(await send(client, request, **options), request)

    return recorded_send


def _watcher(module: Any) -> Any:
    """A function that records a response of the library: now, or when its stream is closed."""

    class Tee(module.SyncByteStream, module.AsyncByteStream):
        def __init__(self, stream: Any, trajectory: Trajectory, request: Any) -> None:
            self._stream, self._trajectory, self._request = stream, trajectory, request
            self._seen = bytearray()

        def __iter__(self) -> Iterator[bytes]:
            for part in self._stream:
                self._seen += part
                yield part

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in self._stream:
                self._seen += part
                yield part

        def close(self) -> None:
            self._stream.close()
            self._end()

        async def aclose(self) -> None:
            await self._stream.aclose()
            self._end()

        def _end(self) -> None:
            _record(self._trajectory, self._request, bytes(self._seen))
            self._seen.clear()

    def watch(response: Any, request: Any) -> Any:
        trajectory = _recording.get()
        if trajectory is not None and response.is_success:
            if response.is_stream_consumed or response.is_closed:
                _record(trajectory, request, response.content)
            else:
                response.stream = Tee(response.stream, trajectory, request)
        return response

    return watch


def _record(trajectory: Trajectory, request: Any, reply: bytes) -> None:
    """Adds a chat completion to the history that it continues; ignores all other exchanges."""
    if not reply or not request.url.path.endswith("/chat/completions"):
        return
    try:
        asked: dict[str, Any] = json.loads(request.content)
        choice = _read_stream(reply) if asked.get("stream") else as_item(json.loads(reply))
    except ValueError:
        return
    if not isinstance(choice, Choice):
        return
    add_turn(trajectory, asked["messages"], asked.get("tools"), choice, History)


def _read_stream(reply: bytes) -> Choice | None:
    """The choice assembled from a stream's events. Raises `ValueError`."""
    state: Any = ChatCompletionStreamState()
    extra: dict[str, Any] = {}
    begun = False
    for line in reply.decode().split("\n"):
        event = line.removeprefix("data:").strip()
        if line.startswith("data:") and event != "[DONE]":
            chunk = ChatCompletionChunk.construct(None, **json.loads(event))
            state.handle_chunk(chunk)
            begun = True
            for part in chunk.choices:
                extra |= {name: value for name, value in (part.model_extra or {}).items() if value is not None}
    if not begun:
        return None
    whole = state.current_completion_snapshot.to_dict()
    return as_item({**whole["choices"][0], **extra})
