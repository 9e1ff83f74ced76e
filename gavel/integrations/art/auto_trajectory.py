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
from collections.abc import Coroutine, Generator
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
    modules: list[Any] = [
        importlib.import_module(name) for name in ("httpx", "httpx2") if importlib.util.find_spec(name)
    ]
    plain = [(each.Client, each.Client.send, _recorded(each.Client.send)) for each in modules]
    return plain + [
        (each.AsyncClient, each.AsyncClient.send, _recorded_async(each.AsyncClient.send)) for each in modules
    ]


def _patch(more: int) -> None:
    global _recordings
    with _lock:
        _recordings += more
        for client, own, recorded in _sends():
            client.send = recorded if _recordings else own


def _recorded(send: Any) -> Any:
    def recorded_send(client: Any, request: Any, **options: Any) -> Any:
        response = send(client, request, **options)
        if (trajectory := _recording.get()) is not None and _is_turn(response, request):
            _record(trajectory, request, response.read())
        return response

    return recorded_send


def _recorded_async(send: Any) -> Any:
    async def recorded_send(client: Any, request: Any, **options: Any) -> Any:
        response = await send(client, request, **options)
        if (trajectory := _recording.get()) is not None and _is_turn(response, request):
            _record(trajectory, request, await response.aread())  # a stream is read whole, and then given from memory
        return response

    return recorded_send


def _is_turn(response: Any, request: Any) -> bool:
    return response.is_success and request.url.path.endswith("/chat/completions")


def _record(trajectory: Trajectory, request: Any, reply: bytes) -> None:
    """Adds a chat completion to the history that it continues; ignores what is none."""
    try:
        asked: dict[str, Any] = json.loads(request.content)
        choice = _read_stream(reply) if asked.get("stream") else as_item(json.loads(reply))
    except ValueError:
        return
    if isinstance(choice, Choice):
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
