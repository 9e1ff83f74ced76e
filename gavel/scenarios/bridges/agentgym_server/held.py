"""Episodes that a server plays for its clients: bounded in number, ended when nobody asks for them any more.

    environment = environments.create()
    shown = await environments.reset(environment, item=3)
    shown = await environments.step(environment, "Action: look_up_order 4711")

A request has a deadline; an episode that misses it is ended. Nothing that a client sends raises anything but
`EnvironmentError`.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gavel.base.errors import GavelError, contain_cancellation
from gavel.llm.types import Message, text_of
from gavel.scenarios.agent_styles.react import form_of
from gavel.scenarios.bridges.agentgym_server.items import Items
from gavel.scenarios.stepped_episode import Moment, SteppedEpisode, SteppedEpisodeError, outcome
from gavel.scenarios.text_calls import Unreadable, Words, calls_message, read_turn


class HeldError(GavelError):
    """A request about an environment cannot be served; its message is the answer."""


class FullError(HeldError):
    """There are as many environments as there may be."""


@dataclass(slots=True, eq=False)
class Environment:
    """What a client created, and the episode in it."""

    number: int
    used: float
    """`time.monotonic()` of the last request."""
    episode: SteppedEpisode | None = None
    tools: Sequence[Message] = ()
    shown: dict[str, Any] = field(default_factory=dict[str, Any])
    """The last answer."""
    busy: bool = False


class Environments:
    """The environments of a server of one scenario. Belongs to one event loop."""

    def __init__(self, items: Items, *, most: int = 256, idle_seconds: float = 900.0) -> None:
        """`most` environments at once; one that nobody asks for during `idle_seconds` is ended."""
        self._items = items
        self._most = most
        self._idle_seconds = idle_seconds
        self._next = 0
        self._held: dict[int, Environment] = {}
        self._seconds = 2 * items.scenario.call_seconds + 30
        """That a request may take."""

    def __len__(self) -> int:
        return len(self._held)

    def create(self) -> Environment:
        """Raises `FullError`."""
        if len(self._held) >= self._most:
            raise FullError(f"{len(self._held)} environments are open, as many as there may be: close one")
        environment = Environment(self._next, time.monotonic())
        self._next += 1
        self._held[environment.number] = environment
        return environment

    def find(self, number: object) -> Environment:
        """Raises `HeldError` for one that is not there."""
        environment = self._held.get(number) if isinstance(number, int) and not isinstance(number, bool) else None
        if environment is None:
            raise HeldError(f"the environment {number} is not valid: it was never created, was closed or has expired")
        environment.used = time.monotonic()
        return environment

    async def reset(self, environment: Environment, item: int, seed: int | None = None) -> dict[str, Any]:
        """Begins an episode; what the agent is shown. Raises `HeldError`."""
        try:
            task = self._items.task(item)
        except LookupError as error:
            raise HeldError(str(error)) from error
        self._begin_request(environment)
        try:
            if environment.episode is not None:
                await environment.episode.close()
            environment.episode = SteppedEpisode(self._items.scenario, task, seed=seed)
            moment = await self._in_time(environment, environment.episode.start())
            environment.tools = moment.tools
            opening = _told(moment.new)
            answer = self._answer(environment, moment, _with_form(opening, moment))
            environment.shown = shown(environment.number, answer | {"tools": moment.tools, "task_description": ""})
            return environment.shown
        finally:
            environment.busy = False

    async def step(
        self, environment: Environment, action: str | Message, finish_reason: str | None = None
    ) -> dict[str, Any]:
        """Takes a turn: a text as `text_calls` reads it, or an assistant's message. Raises `HeldError`."""
        if environment.episode is None:
            raise HeldError(f"the environment {environment.number} is not initialized: reset it first")
        if environment.episode.over:
            raise HeldError(f"the task with environment {environment.number} has finished: reset it")
        self._begin_request(environment)
        try:
            message = action
            if isinstance(message, str):
                turn = read_turn(message, environment.tools)
                if isinstance(turn, Unreadable):  # no turn of the agent: it may try again
                    answer = {"observation": turn.problem, "reward": 0.0, "score": 0.0, "done": False}
                    environment.shown = shown(environment.number, answer)
                    return environment.shown
                text = isinstance(turn, Words)
                message = {"content": turn.text} if text else calls_message(turn, environment.episode.turns)
            moment = await self._in_time(environment, environment.episode.act(message, finish_reason=finish_reason))
            environment.tools = moment.tools or environment.tools
            environment.shown = shown(environment.number, self._answer(environment, moment, _told(moment.new)))
            return environment.shown
        finally:
            environment.busy = False

    async def close(self, environment: Environment) -> None:
        self._held.pop(environment.number, None)
        if environment.episode is not None:
            await environment.episode.close()

    async def close_idle(self) -> None:
        """Ends what nobody has asked for."""
        before = time.monotonic() - self._idle_seconds
        for environment in [each for each in self._held.values() if each.used < before and not each.busy]:
            await self.close(environment)

    async def close_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for environment in list(self._held.values()):
                tasks.create_task(self.close(environment))

    def _begin_request(self, environment: Environment) -> None:
        if environment.busy:
            raise HeldError(f"the environment {environment.number} is asked twice at once: await one answer")
        environment.busy = True

    async def _in_time(self, environment: Environment, work: Any) -> Moment:
        try:
            async with asyncio.timeout(self._seconds):
                return await contain_cancellation(work)
        except RuntimeError as error:  # its rollout was cancelled
            raise HeldError(f"the environment {environment.number} was closed, and is not valid any more") from error
        except TimeoutError as error:
            await self.close(environment)
            raise HeldError(f"the environment {environment.number} did not answer in time, and has expired") from error
        except SteppedEpisodeError as error:
            raise HeldError(error.message) from error

    def _answer(self, environment: Environment, moment: Moment, observation: str) -> dict[str, Any]:
        """Raises `HeldError` for an episode that failed: it has no reward, not one of 0."""
        answer = {"observation": observation, "messages": moment.new, "reward": 0.0, "score": 0.0, "done": moment.over}
        if not moment.over:
            return answer
        assert environment.episode is not None
        trajectory = environment.episode.trajectory
        if trajectory.status == "failed":
            raise HeldError(f"the episode failed, and has finished: {trajectory.status_reason}")
        found = outcome(self._items.scenario, trajectory)
        reward = found.get("success", found.get("hand_reward", 0.0))
        return answer | {
            **{"reward": reward, "score": reward, "outcome": found, "metrics": trajectory.metrics},
            **{"status": trajectory.status, "status_reason": trajectory.status_reason},
        }


def shown(number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with the names that each of AgentGym's clients reads. `id` comes first: see `app`."""
    names = {"env_idx": number, "state": answer["observation"], "terminated": answer["done"], "available_actions": []}
    return {"id": number, **answer, **names}


def _told(messages: Sequence[Mapping[str, Any]]) -> str:
    """What an agent is to read: all but its own turns."""
    return "\n\n".join(text_of(dict(each)) for each in messages if each.get("role") != "assistant")


def _with_form(opening: str, moment: Moment) -> str:
    """The opening, with the tools and the form of an action for agents that are told nothing else."""
    if not moment.tools:
        return opening
    system, user = (
        _told([each for each in moment.new if (each.get("role") in ("system", "developer")) == is_system])
        for is_system in (True, False)
    )
    return "\n\n".join(filter(None, (system, form_of(moment.tools), user)))
