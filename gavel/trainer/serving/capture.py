"""Captures what any client samples: whatever runs inside, its turns become one trajectory with exact tokens.

    async with model.capture() as capture:
        client = AsyncOpenAI(base_url=capture.base_url, api_key=capture.api_key)
        ...                                    # any framework, in any process
    capture.trajectory

The endpoint tells captures apart by their keys, so they run beside each other. A turn counts once its whole reply was
made for a client that still waits. A turn that continues another one is joined to it:

    A, B continues A, C continues A, D continues B   ->   A B D, with A C as a further history

A sampled turn is a `Choice` in one history alone; in others it is a message, which is not trained.
"""

import asyncio
import contextlib
import math
import os
import secrets
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from openai import AsyncOpenAI, OpenAIError
from openai._types import RequestOptions

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine, pass_proxies, past_proxies
from gavel.llm.types import Message
from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.serving.turn_cache import meaning, plain_message


@dataclass(frozen=True, slots=True)
class CapturedTurn:
    """One sampled turn."""

    parent: int | None
    """Number of the turn that it continues."""
    context: list[Message]
    """The request's messages after that turn's reply."""
    tools: list[Message] | None
    choice: Message


def captured_trajectory(turns: Sequence[CapturedTurn]) -> Trajectory:
    """The trajectory of all turns, which are in the order in which they were sampled.

    The main history is the one that lasts longest, from its first turn to its last: that of an agent that waits for its
    sub-agents, and of several attempts at a turn the last one. Where a client rewrites the conversation at every turn,
    it is the one with the most messages.
    """
    paths = sorted(_paths(turns), key=lambda path: _extent(turns, path), reverse=True)
    if not paths:
        return Trajectory(
            metrics={"turns": 0}, status="failed", status_reason="no turn was sampled with the key of the capture"
        )
    histories: list[History] = []
    shown: set[int] = set()
    for path in paths:
        items: list[Message] = []
        for number in path:
            choice = turns[number].choice
            items += [*turns[number].context, choice["message"] if number in shown else choice]
        shown.update(path)
        tools = [turns[number].tools for number in path if turns[number].tools]
        histories.append(History.model_validate({"messages_and_choices": items, "tools": tools[-1] if tools else None}))
    main, *others = histories
    versions = [turn.choice["policy_version"] for turn in turns if turn.choice.get("policy_version") is not None]
    cut = turns[paths[0][-1]].choice["finish_reason"] == "length"
    return Trajectory(
        messages_and_choices=main.messages_and_choices,
        tools=main.tools,
        additional_histories=others,
        metrics={"turns": len(turns)},
        status="truncated" if cut else "finished",
        status_reason="a turn reached its token limit" if cut else None,
        policy_version=min(versions, default=None),
    )


def _extent(turns: Sequence[CapturedTurn], path: Sequence[int]) -> tuple[int, int, int]:
    return path[-1] - path[0], len(path), sum(len(turns[number].context) for number in path)


def _paths(turns: Sequence[CapturedTurn]) -> list[list[int]]:
    """The numbers of the turns from each first turn to each last one."""
    paths: list[list[int]] = []
    for leaf in sorted({*range(len(turns))} - {turn.parent for turn in turns}):
        path = [leaf]
        while (parent := turns[path[0]].parent) is not None:
            path.insert(0, parent)
        paths.append(path)
    return paths


KEY_PREFIX = "gavel-capture-"


def given_key(headers: Mapping[str, str]) -> str:
    """The capture key in any header that OpenAI's, Anthropic's or Azure's clients use; else the first key."""
    given = [headers.get(name, "").split() for name in ("x-api-key", "authorization", "api-key")]
    keys = [words[-1] for words in given if words]
    return next((key for key in keys if key.startswith(KEY_PREFIX)), keys[0] if keys else "")


_OPEN = 8192
"""Captures that are kept; of more, the one that was used least recently is forgotten."""


class UnknownCapture(GavelError):
    """A key of no capture that is open."""

    def __init__(self) -> None:
        super().__init__(
            "this key belongs to no open capture", "Send requests inside `async with model.capture()`, with its key."
        )


class CaptureBook:
    """The open captures, by their keys."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, OpenCapture] = OrderedDict()

    def open(self) -> str:
        """The key of a new capture."""
        key = KEY_PREFIX + secrets.token_hex(16)
        self._open[key] = OpenCapture()
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return key

    def holds(self, key: str) -> bool:
        """Whether the capture of this key is open."""
        return key in self._open

    def of(self, key: str) -> "OpenCapture | None":
        """The capture of a request; None for a key that is none of a capture. Raises `UnknownCapture`."""
        if not key.startswith(KEY_PREFIX):
            return None
        if key not in self._open:
            raise UnknownCapture
        self._open.move_to_end(key)
        return self._open[key]

    async def close(self, key: str, patience: float) -> "OpenCapture":
        """The capture, which takes no more requests; those in flight have `patience` seconds.

        Raises `UnknownCapture`.
        """
        if self.of(key) is None:
            raise UnknownCapture
        capture = self._open.pop(key)
        await capture.settle(patience)
        return capture


class OpenCapture:
    """The turns of one capture so far."""

    def __init__(self) -> None:
        self.turns: list[CapturedTurn] = []
        self.in_flight = 0
        self.abandoned = 0
        """Turns whose client went away before they were sampled to their end."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._numbers: dict[bytes, list[int]] = {}
        """The turns whose conversation, reply included, has this key."""

    @contextmanager
    def request(self) -> Generator[None]:
        """Context in which a request is answered."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def settle(self, patience: float) -> None:
        """Waits until no request is in flight, or `patience` seconds have passed."""
        with contextlib.suppress(TimeoutError):  # `in_flight` tells
            async with asyncio.timeout(patience):
                await self._idle.wait()

    def add(self, messages: Sequence[Message], tools: list[Message] | None, choice: Message) -> None:
        """Remembers that `choice` was sampled after `messages`."""
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        parent = self._parent(self._numbers.get(_key(messages[: last + 1]), []), choice)
        context = list(messages if parent is None else messages[last + 1 :])
        self._numbers.setdefault(_key([*messages, choice["message"]]), []).append(len(self.turns))
        self.turns.append(CapturedTurn(parent, context, tools, choice))

    def _parent(self, known: Sequence[int], choice: Message) -> int | None:
        """The turn of equal text whose tokens this turn continues, else the last one; None for an edited turn."""
        if not choice["continues_sampled"] or not known:
            return None
        for number in reversed(known):
            earlier = self.turns[number].choice
            ids = [*earlier["prompt_token_ids"], *earlier["token_ids"]]
            if choice["prompt_token_ids"][: len(ids)] == ids:
                return number
        return known[-1]


def _key(messages: Sequence[Message]) -> bytes:
    return meaning([plain_message(message) for message in messages]).key


current_capture: ContextVar[OpenCapture | None] = ContextVar("current_capture", default=None)
"""The capture of the request that is answered."""


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
        """The base URL for OpenAI's and Anthropic's clients."""

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
        """The trajectory of the sampled turns. Its main history is the longest conversation."""
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
                options["params"] = {"patience": patience}
                answer = await self._client.delete(path, cast_to=object, options=options)
        except (OpenAIError, ValueError) as error:
            raise CaptureError(
                f"{self.base_url}{path} failed: {type(error).__name__}: {error}",
                "Does the backend still run, and does it serve captures?",
            ) from error
        return cast("dict[str, Any]", answer)
