"""A language model that plays the person who talks to the agent.

    user = gavel.SimulatedUser("openai/gpt-5-mini", persona="in a hurry", goal=lambda task: task.data["goal"])
    scenario = gavel.Scenario("desk", system="…", tools=[…], user=user, tasks=[…])

The person answers every turn of the agent that calls no tool, until it is done. Its words are user messages: they are
never trained. With a cassette, the same episode (by task and seed) gets the same words at no cost.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gavel.llm.budget import Budget, Prices, prices_from_environment
from gavel.llm.cassette import Cassette
from gavel.llm.client import Client
from gavel.llm.errors import LlmError
from gavel.llm.types import Message, ModelCallable, Reply
from gavel.prompts import render
from gavel.scenarios.environment import WorldError
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tools import Done, described

_SCHEMA = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "done": {"type": "boolean"}},
    "required": ["message", "done"],
    "additionalProperties": False,
}
_TRIES = 3
"""Max requests for one message of the person, if replies are unreadable."""
COST, CALLS = "user_cost_usd", "user_calls"
"""Trajectory metrics. The cost is absent if unknown."""

Words = str | Callable[[Task], str]


class SimulatedUser:
    """The model that plays the person, and the person's description."""

    def __init__(
        self,
        model: str | ModelCallable,
        persona: Words = "",
        goal: Words = "",
        *,
        params: Mapping[str, Any] | None = None,
        cassette: Cassette | str | Path | None = None,
        budget: Budget | None = None,
        prices: Prices | None = None,
    ) -> None:
        """`model`: a LiteLLM id, or an async callable `(messages, schema) -> str`. `persona` and `goal`: texts, or
        functions of the task; what the agent may know belongs in `Task.user`, which both see.

        `params`: more parameters of LiteLLM; the seed is that of the episode where it has one. `budget` may be shared
        with a judge. If the model cannot be called, its episodes are `failed`, with the reason.
        """
        self._persona = persona
        self._goal = goal
        kept = Cassette(cassette) if isinstance(cassette, str | Path) else cassette
        self._client = Client(
            model,
            dict(params or {}),
            prices=prices_from_environment() if prices is None else prices,
            budget=budget or Budget(),
            cassette=kept,
        )

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def settings(self) -> list[str]:
        """The settings that identify this person: the model and its instructions (for a function, its name)."""
        told = (self._persona, self._goal)
        return [self.name, *(text if isinstance(text, str) else text.__qualname__ for text in told)]

    def meet(self, episode: Episode) -> "Person":
        """Creates the person of one episode."""
        task, client = episode.task, self._client
        if episode.seed is not None and isinstance(client.model, str):
            client = replace(client, params={"seed": episode.seed % 2**31, **client.params})
        system = render("scenarios/simulated_user.j2", persona=_said(self._persona, task), goal=_said(self._goal, task))
        return Person(client, system.strip(), episode)


class Person:
    """A simulated user in one episode."""

    def __init__(self, client: Client, system: str, episode: Episode) -> None:
        self._client = client
        self._episode = episode
        self._messages: list[Message] = [{"role": "system", "content": system}]
        if episode.task.user:
            self._messages.append({"role": "assistant", "content": _as_reply(episode.task.user)})

    async def answer(self, action: str) -> str | Done:
        """The same as `observe`, for an environment to return: the person's last message ends the episode."""
        words, is_done = await self.observe(action)
        return Done(words) if is_done else words or ""

    async def observe(self, action: str | None) -> tuple[str | None, bool]:
        """The person's answer to the agent, and whether it was the last; None opens the conversation. Raises
        `WorldError`."""
        said = action or f"(The assistant {'waits for you to begin' if action is None else 'says nothing'}.)"
        self._messages.append({"role": "user", "content": said})
        metrics = self._episode.trajectory.metrics
        unusable: list[tuple[list[Message], Reply]] = []
        asked = [*self._messages]
        for _ in range(_TRIES):
            try:
                reply = await self._client.ask(asked, _SCHEMA, lambda reply: _read(reply.text) is not None, unusable)
            except LlmError as error:
                raise WorldError(f"the simulated user cannot be asked: {error.message}", error.remedy) from error
            metrics[CALLS] = metrics.get(CALLS, 0) + 1
            if reply.cached or reply.cost_usd is not None:
                metrics[COST] = metrics.get(COST, 0.0) + (0.0 if reply.cached else reply.cost_usd or 0.0)
            if (words := _read(reply.text)) is not None:
                self._messages.append({"role": "assistant", "content": _as_reply(*words)})
                return words[0] or None, words[1]
            unusable.append((asked, reply))
            asked = [
                *self._messages,
                {"role": "assistant", "content": reply.text.strip() or "(no reply)"},
                {"role": "user", "content": 'Reply with the JSON object alone: {"message": "…", "done": false}'},
            ]
        raise WorldError(
            f"the simulated user {self._client.name} gave no reply that can be read, {_TRIES} times.",
            'A reply is {"message": "…", "done": false}, as JSON or, of a function, as a dict.',
        )


def _said(words: Words, task: Task) -> str:
    if isinstance(words, str):
        return words
    try:
        return words(task)
    except Exception as error:
        told = f"the persona or goal of the simulated user failed for the task {task.id}: {described(error)}"
        raise WorldError(told) from error


def _as_reply(message: str, done: bool = False) -> str:
    return json.dumps({"message": message, "done": done}, ensure_ascii=False)


def _read(text: str) -> tuple[str, bool] | None:
    """Parses a reply into the person's message and whether it is the last; None if it is not the requested object."""
    start, end = text.find("{"), text.rfind("}")
    try:
        found: object = json.loads(text[start : end + 1])
    except ValueError:
        return None
    match found:
        case {"message": str(message), "done": bool(done)} if message.strip() or done:
            return message.strip(), done
        case _:
            return None
