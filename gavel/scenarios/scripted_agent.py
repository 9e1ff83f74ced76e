"""Agents without a model that exercise a scenario: one uses every tool once, the other only answers.

Arguments are examples that the tools' schemas allow. An argument with the name of a field in the task's data gets that
value; another text is the number in the user's message, if there is one.
"""

import importlib
import json
import random
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gavel.llm.types import Message, text_of
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.scenario import shipped_scenarios
from gavel.scenarios.task import Task


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as a scripted agent writes it, in Qwen's chat format, from which embedded policies are cloned."""

    name: str
    arguments: Mapping[str, str | int | float]

    @property
    def text(self) -> str:
        body = json.dumps({"name": self.name, "arguments": dict(self.arguments)})
        return f"<tool_call>\n{body}\n</tool_call>"


Turns = Generator[Call | str, str, None]
"""Yields calls and words; receives the answer to each."""
Player = Callable[[Task, str, random.Random], Turns]
"""A player's function of the task, the first message to the agent and a random generator. An expert needs the message
alone, unless its tools show the world only in part."""


def players_of(scenario: str) -> Mapping[str, Player]:
    """The players of a shipped scenario by name: `expert`, `fool` and others; empty where it has none."""
    if scenario not in shipped_scenarios():
        return {}
    return getattr(importlib.import_module(f"gavel.scenarios.library.{scenario}"), "PLAYERS", {})


def played_by(player: Player, task: Task, seed: int = 0) -> FunctionModel:
    """A chat model that plays episodes of `task`, one at a time. A finished player sends an empty turn."""
    running: dict[str, Turns] = {}

    async def reply(request: ChatRequest) -> Message:
        messages = request.messages
        opening = next(at for at, message in enumerate(messages) if message["role"] == "user")
        conversation = json.dumps(messages[: opening + 1])  # agents of one episode have separate conversations
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


_DEPTH = 6
"""Max depth of an example for a recursive schema."""
_WITH_DIGIT = re.compile(r"[\w-]*\d[\w-]*")


def tool_user(known: Mapping[str, Any] | None = None) -> FunctionModel:
    """Calls one tool per turn, each once, and then answers.

    `known`: argument name to value, such as a task's data.
    """
    values = known or {}

    async def use_next(request: ChatRequest) -> Message:
        used = sum(message.get("role") == "tool" for message in request.messages)
        if used >= len(request.tools):
            return {"content": "I have used every tool that I have."}
        function = request.tools[used]["function"]
        said = " ".join(text_of(message) for message in request.messages if message.get("role") == "user")
        named = _WITH_DIGIT.search(said)
        parameters: dict[str, Any] = function.get("parameters") or {}
        arguments = cast("dict[str, Any]", example(parameters, text=named[0] if named else "example") or {})
        properties: dict[str, Any] = parameters.get("properties") or {}
        arguments |= {name: values[name] for name in properties if isinstance(values.get(name), str | int | float)}
        call = {"name": function["name"], "arguments": json.dumps(arguments)}
        return {"content": "", "tool_calls": [{"id": f"call_{used}", "type": "function", "function": call}]}

    return FunctionModel("scripted/tool-user", use_next)


def talker() -> FunctionModel:
    """Calls no tool."""

    async def answer(request: ChatRequest) -> Message:
        return {"content": "That is all I can do."}

    return FunctionModel("scripted/talker", answer)


def example(schema: Any, text: str = "example") -> Any:
    """An example value for a JSON schema, as far as types, enumerations and bounds tell."""

    def make(given: Any, depth: int = _DEPTH) -> Any:
        if not isinstance(given, dict) or depth == 0:
            return None
        part = cast("dict[str, Any]", given)
        if "$ref" in part:
            found: Any = schema
            for key in part["$ref"].removeprefix("#/").split("/"):
                found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
            return make(found, depth - 1)
        for key in ("const", "default"):
            if key in part:
                return part[key]
        for key in ("examples", "enum", "anyOf", "oneOf", "allOf"):
            if part.get(key):
                return part[key][0] if key in ("examples", "enum") else make(part[key][0], depth - 1)
        kinds: str | list[str] | None = part.get("type")
        match kinds[0] if isinstance(kinds, list) and kinds else kinds:
            case "integer" | "number":
                return part.get("minimum", part.get("exclusiveMinimum", 0) + 1)
            case "boolean":
                return False
            case "array":
                return [make(part.get("items"), depth - 1) for _ in range(part.get("minItems", 0))]
            case "string":
                return text.ljust(part.get("minLength", 0), "x")[: part.get("maxLength")]
            case "null":
                return None
            case _:
                properties: dict[str, Any] = part.get("properties") or {}
                return {name: make(properties.get(name), depth - 1) for name in part.get("required") or ()}

    return make(schema)
