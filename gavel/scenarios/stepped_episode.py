"""An episode whose agent is external and gives its turns one at a time, as a scenario server needs.

    async with SteppedEpisode(scenario, task, seed=3) as episode:
        moment = await episode.start()                          # what the agent is shown first, and its tools
        moment = await episode.act({"content": "Refunded."})    # an assistant's message, perhaps with tool calls
        episode.trajectory                                      # once moment.over

It runs the rollout used in training, with a model whose turns come from outside: tools, worlds, simulated users, limits
and own rollouts behave as they do in process. Concurrent requests of a rollout are served one after another.
"""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Self

from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import described
from gavel.scenarios.trajectory import Trajectory

_CLOSE_SECONDS = 30.0
"""Seconds that a cancelled rollout may take to close its world."""


class SteppedEpisodeError(GavelError):
    """A turn is invalid: the episode is over or not started, or the message is no assistant's."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The agent's view before its next turn, or after its last one."""

    new: list[Message]
    """Messages since the agent's last turn; all of them if the conversation was replaced."""
    tools: list[Message] = field(default_factory=list[Message])
    """OpenAI schemas of the tools that can be called now."""
    over: bool = False


class SteppedEpisode:
    """One attempt at a task, as an async context manager: leaving it ends the rollout and closes its world."""

    def __init__(self, scenario: Scenario, task: Task, *, seed: int | None = None) -> None:
        self._scenario = scenario
        self._task = task
        self._seed = seed
        self._one_at_a_time = asyncio.Lock()
        self._asked: asyncio.Queue[ChatRequest] = asyncio.Queue()
        self._given: asyncio.Queue[Choice] = asyncio.Queue()
        self._rollout: asyncio.Task[Trajectory] | None = None
        self._seen: list[Message] = []
        self._acting = asyncio.Lock()
        self.over = False
        self.turns = 0

    @property
    def trajectory(self) -> Trajectory:
        """The whole attempt. Raises `SteppedEpisodeError` before it is over."""
        if self._rollout is None or not self.over:
            raise SteppedEpisodeError("the episode is not over")
        return self._rollout.result()

    async def start(self) -> Moment:
        """Starts the episode; returns the agent's first view. Raises `SteppedEpisodeError` if it has started."""
        if self._rollout is not None:
            raise SteppedEpisodeError("the episode has begun already", "Make another one.")
        model = FunctionModel("outside", self._turn)
        self._rollout = asyncio.create_task(rollout(model, self._scenario, self._task, seed=self._seed))
        return await self._next()

    async def act(self, message: Message, *, finish_reason: str | None = None) -> Moment:
        """Takes a turn: an assistant's message in OpenAI's form. `finish_reason="length"`: it was truncated.

        Raises `SteppedEpisodeError` before the start, after the end, during another turn, and for an invalid message.
        """
        if self._rollout is None or self.over:
            raise SteppedEpisodeError("the episode is over" if self.over else "the episode has not begun")
        if self._acting.locked():
            raise SteppedEpisodeError("two turns are taken at once", "Await one before the next.")
        turn = _as_choice(message, finish_reason)
        async with self._acting:
            self._seen.append({"role": "assistant"})
            self.turns += 1
            self._given.put_nowait(turn)
            return await self._next()

    async def close(self) -> None:
        """Ends the rollout, whatever it does, within a bounded time."""
        if self._rollout is not None and not self._rollout.done():
            self._rollout.cancel()
            await asyncio.wait({self._rollout}, timeout=_CLOSE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _turn(self, request: ChatRequest) -> Choice:
        """The model's side: publishes the request, and waits for the external turn."""
        async with self._one_at_a_time:
            self._asked.put_nowait(request)
            return await self._given.get()

    async def _next(self) -> Moment:
        assert self._rollout is not None
        asked = asyncio.create_task(self._asked.get())
        try:
            await asyncio.wait({asked, self._rollout}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                request = asked.result()
                return Moment(self._since(request.messages), request.tools)
        finally:
            asked.cancel()
        self.over = True
        return Moment(self._since(self._rollout.result().messages()), over=True)

    def _since(self, messages: list[Message]) -> list[Message]:
        """The messages added since the agent's last turn."""
        before, self._seen = self._seen, list(messages)
        same = len(before) <= len(messages) and all(
            now.get("role") == "assistant" if said.get("role") == "assistant" else said == now
            for said, now in zip(before, messages, strict=False)
        )
        return messages[len(before) :] if same else messages


def outcome(scenario: Scenario, trajectory: Trajectory) -> dict[str, float]:
    """The available `success`, `hand_reward` and measures of a finished attempt, for comparison. Empty for a failed
    episode."""
    found: dict[str, float] = {}
    if trajectory.status == "failed":
        return found
    checks = {"success": scenario.success, "hand_reward": scenario.hand_reward, **scenario.measures}
    for name, check in checks.items():
        if check is None:
            continue
        try:
            number = float(check(trajectory.reading_copy()))
            if math.isfinite(number):
                found[name] = number
        except Exception as error:
            trajectory.log(f"{name} of the scenario {scenario.name} failed: {described(error)}")
    return found


def _as_choice(message: Message, finish_reason: str | None) -> Choice:
    """The agent's turn. Raises `SteppedEpisodeError` for anything but an assistant's message."""
    calls, content = message.get("tool_calls") or None, message.get("content")
    if not isinstance(content, str | None):
        raise SteppedEpisodeError(f"the content of a turn is a text, not a {type(content).__name__}")
    said = {"role": "assistant", "content": content or "", **({"tool_calls": calls} if calls else {})}
    ended = finish_reason or ("tool_calls" if calls else "stop")
    try:
        return Choice.model_validate({"index": 0, "finish_reason": ended, "message": said})
    except ValueError as error:
        raise SteppedEpisodeError(f"a turn is an assistant's message in OpenAI's form: {str(error)[:300]}") from error
