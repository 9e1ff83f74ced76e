"""Scripted players of the shipped scenarios: an expert that does the job, and others that show how it fails.

    model = played_by(PLAYERS["expert"], task)      # PLAYERS of gavel.scenarios.library.NAME
    episode = await gavel.rollout(model, scenario, task)

A player is a generator: it yields tool calls and words, and is sent what they are answered with. It is given the first
message that the agent reads, so an expert shows that the job can be done by what an agent is told.
"""

import importlib
import json
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from gavel.llm.types import Message, text_of
from gavel.scenarios.function_model import ChatRequest, FunctionModel
from gavel.scenarios.scenario import shipped_scenarios
from gavel.scenarios.task import Task


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as a scripted agent writes it, in Qwen's chat format: what embedded policies are cloned from."""

    name: str
    arguments: Mapping[str, str | int | float]

    @property
    def text(self) -> str:
        body = json.dumps({"name": self.name, "arguments": dict(self.arguments)})
        return f"<tool_call>\n{body}\n</tool_call>"


Turns = Generator[Call | str, str, None]
"""Calls and words; the answer to each is sent to it."""
Player = Callable[[Task, str, random.Random], Turns]
"""Of the task, the first message to the agent and a source of chance. An expert needs the message alone, unless the
world can be seen by its tools only in part."""


def players_of(scenario: str) -> Mapping[str, Player]:
    """The players of a shipped scenario by name: `expert`, `fool` and others; empty where it has none."""
    if scenario not in shipped_scenarios():
        return {}
    return getattr(importlib.import_module(f"gavel.scenarios.library.{scenario}"), "PLAYERS", {})


def played_by(player: Player, task: Task, seed: int = 0) -> FunctionModel:
    """A chat model that plays episodes of `task`, one at a time. A player who has no more to say says nothing."""
    running: dict[str, Turns] = {}

    async def reply(request: ChatRequest) -> Message:
        messages = request.messages
        opening = next(at for at, message in enumerate(messages) if message["role"] == "user")
        conversation = json.dumps(messages[: opening + 1])  # agents of one episode have conversations of their own
        if all(message["role"] != "assistant" for message in messages):
            running[conversation] = player(task, text_of(messages[opening]), random.Random(f"player {seed}"))
            said = None
        else:
            said = text_of(messages[-1])
        turns = running[conversation]
        try:
            turn = next(turns) if said is None else turns.send(said)
        except StopIteration:
            return {"content": ""}
        if isinstance(turn, str):
            return {"content": turn}
        function = {"name": turn.name, "arguments": json.dumps(dict(turn.arguments))}
        return {"tool_calls": [{"id": f"call_{len(messages)}", "type": "function", "function": function}]}

    return FunctionModel("scripted/player", reply)
