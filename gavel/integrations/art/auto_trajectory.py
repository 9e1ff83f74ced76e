"""Records what a coroutine asks of chat models, through any client over httpx or httpx2, as one trajectory.

    trajectory = await art.capture_auto_trajectory(answer(question))
    art.auto_trajectory().reward = 1.0            inside the coroutine

They are patched while something is recorded, and only then. A request that goes on from a recorded conversation extends
it; any other one begins a further history.
"""

import importlib
import importlib.util
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, overload

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion import Choice

from gavel.integrations.art.trajectories import History, Trajectory
from gavel.scenarios.foreign_choices import as_item

_recording: ContextVar[Trajectory | None] = ContextVar("auto_trajectory", default=None)
_lock = threading.Lock()
_recordings = 0


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: Literal[False] = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """The trajectory that is being recorded. Raises `RuntimeError` when there is none and `required` is set."""
    trajectory = _recording.get()
    if trajectory is None and required:
        raise RuntimeError("nothing is recorded here: run this in art.capture_auto_trajectory(…)")
    return trajectory


async def capture_auto_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Runs `coroutine`; gives what it asked of chat models."""
    with recording(Trajectory()) as trajectory:
        await coroutine
    return trajectory.finish()


@contextmanager
def recording(trajectory: Trajectory) -> Generator[Trajectory]:
    """Records into `trajectory` what runs in the block."""
    token = _recording.set(trajectory)
    _patch(1)
    try:
        yield trajectory
    finally:
        _patch(-1)
        _recording.reset(token)


class _Library:
    """httpx, or httpx2, which has the same names: OpenAI's client uses the second from its version 3 on."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._send = module.Client.send
        self._async_send = module.AsyncClient.send
        self._tees = _tees(module)

    def patch(self, is_recording: bool) -> None:
        sends = self._recorded_sends() if is_recording else (self._send, self._async_send)
        self._module.Client.send, self._module.AsyncClient.send = sends

    def _recorded_sends(self) -> tuple[Any, Any]:
        send, async_send = self._send, self._async_send
        tee, async_tee = self._tees

        def recorded_send(client: Any, request: Any, **options: Any) -> Any:
            response = send(client, request, **options)
            _watch(response, request, tee)
            return response

        async def recorded_async_send(client: Any, request: Any, **options: Any) -> Any:
            response = await async_send(client, request, **options)
            _watch(response, request, async_tee)
            return response

        return recorded_send, recorded_async_send


@cache
def _libraries() -> list[_Library]:
    names = [name for name in ("httpx", "httpx2") if importlib.util.find_spec(name) is not None]
    return [_Library(importlib.import_module(name)) for name in names]


def _patch(more: int) -> None:
    global _recordings
    with _lock:
        _recordings += more
        for library in _libraries():
            library.patch(_recordings > 0)


def _watch(response: Any, request: Any, tee: Callable[..., Any]) -> None:
    """Records the reply: now, or when its stream is closed."""
    trajectory = _recording.get()
    if trajectory is None or not response.is_success:
        return
    if response.is_stream_consumed or response.is_closed:
        _record(trajectory, request, response.content)
    else:
        response.stream = tee(response.stream, trajectory, request)


def _tees(module: Any) -> tuple[type, type]:
    """Streams of a library that record the reply when they are closed."""

    class Tee(module.SyncByteStream):
        def __init__(self, stream: Any, trajectory: Trajectory, request: Any) -> None:
            self._stream, self._trajectory, self._request = stream, trajectory, request
            self._seen: list[bytes] = []

        def __iter__(self) -> Iterator[bytes]:
            for part in self._stream:
                self._seen.append(part)
                yield part

        def close(self) -> None:
            self._stream.close()
            seen, self._seen = b"".join(self._seen), []
            _record(self._trajectory, self._request, seen)

    class AsyncTee(module.AsyncByteStream):
        def __init__(self, stream: Any, trajectory: Trajectory, request: Any) -> None:
            self._stream, self._trajectory, self._request = stream, trajectory, request
            self._seen: list[bytes] = []

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in self._stream:
                self._seen.append(part)
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()
            seen, self._seen = b"".join(self._seen), []
            _record(self._trajectory, self._request, seen)

    return Tee, AsyncTee


def _record(trajectory: Trajectory, request: Any, reply: bytes) -> None:
    """Adds a chat completion to the history that it goes on from; all other exchanges are none of this."""
    if not reply or not request.url.path.endswith("/chat/completions"):
        return
    try:
        asked: dict[str, Any] = json.loads(request.content)
        choice = _streamed(reply) if asked.get("stream") else as_item(json.loads(reply))
    except ValueError:
        return
    if not isinstance(choice, Choice):
        return
    messages, tools = asked["messages"], asked.get("tools")
    for history in (trajectory, *trajectory.additional_histories):
        known = history.messages_and_choices
        if not known or (len(known) <= len(messages) and _goes_on(history.messages(), messages)):
            break
    else:
        history = History()
        trajectory.additional_histories.append(history)
    history.messages_and_choices += [*messages[len(history.messages_and_choices) :], choice]
    history.tools = tools


def _goes_on(known: list[dict[str, Any]], messages: list[dict[str, Any]]) -> bool:
    return [_essence(message) for message in known] == [_essence(message) for message in messages[: len(known)]]


def _essence(message: dict[str, Any]) -> tuple[Any, ...]:
    """What a message says, whatever a client drops, adds or reorders."""
    calls = [
        (call["function"]["name"], _compact(call["function"]["arguments"])) for call in message.get("tool_calls") or ()
    ]
    return message["role"], message.get("content") or "", calls, message.get("tool_call_id")


def _compact(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments


def _streamed(reply: bytes) -> Choice | None:
    """The choice that the events of a stream make up. Raises `ValueError`."""
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
