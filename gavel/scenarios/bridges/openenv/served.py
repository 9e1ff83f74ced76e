"""A scenario's episodes as sessions of OpenEnv, without any network.

    session = ServedSession(scenario)
    await session.reset({"split": "train", "index": 3})
    await session.step({"type": "call_tool", "tool_name": "look_up_order", "arguments": {"order_id": "7890"}})
    await session.step({"type": "message", "content": "Your money is on its way."})

A session has one episode at a time. The reward comes with the last observation: the scenario's hand reward, or else
whether it succeeded; both, and its measures, stand in the metadata. What only the world may know is never sent.
"""

import asyncio
import json
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.bridges.openenv.actions import GAVEL_ACTION
from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.stepped_episode import Moment, SteppedEpisode, outcome
from gavel.scenarios.task import Task

SPLITS: Mapping[str, Split] = {"train": "train", "test": "held_out", "held_out": "held_out"}
"""Names of the splits on the wire."""
_SPLITS: tuple[Split, ...] = ("train", "held_out")


class ServedError(GavelError):
    """A request that this session cannot do."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Turn(_Part):
    """The agent's whole turn: an assistant's message of OpenAI, perhaps with tool calls."""

    type: Literal["turn"]
    message: dict[str, JsonValue]
    finish_reason: Literal["stop", "tool_calls", "length"] | None = None


class Words(_Part):
    """The agent answers in words."""

    type: Literal["message"]
    content: str


class ToolCall(_Part):
    """The agent calls one tool."""

    type: Literal["call_tool"]
    tool_name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])


class ToolList(_Part):
    type: Literal["list_tools"]


Action = Annotated[Turn | Words | ToolCall | ToolList, Field(discriminator="type")]
_ACTION: TypeAdapter[Action] = TypeAdapter(Action)


class ResetData(_Part):
    """What `reset` takes."""

    split: Literal["train", "test", "held_out"] = "train"
    index: int | None = Field(default=None, ge=0)
    task_id: str | None = None
    seed: int | None = Field(default=None, ge=0)
    """Of the episode; without a task it chooses one, too."""
    episode_id: str | None = Field(default=None, max_length=255)


class ServedSession:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._episode: SteppedEpisode | None = None
        self._tools: list[Message] = []
        self._id: str | None = None
        self._task: Task | None = None
        self._lock = asyncio.Lock()

    async def reset(self, data: Any) -> Message:
        """Begins another episode; its first observation.

        Raises pydantic's `ValidationError` for data of another form, `ServedError` for a task that is not there.
        """
        given = ResetData.model_validate(data or {})
        task = self._chosen(given)
        async with self._lock:
            await self._end()
            episode = SteppedEpisode(self._scenario, task, seed=given.seed)
            self._episode, self._task = episode, task
            self._id = given.episode_id or uuid.uuid4().hex
            moment = await episode.start()
            return self._observation(moment, {"tool_schemas": moment.tools})

    async def step(self, data: Any) -> Message:
        """Takes an action; what follows. Raises as `reset` does."""
        action = _ACTION.validate_python(data)
        async with self._lock:
            if self._episode is None:
                raise ServedError("the episode has not begun", "Send reset first.")
            match action:
                case ToolList():
                    return _answer({"tools": [_listed(schema) for schema in self._tools]}, done=self._episode.over)
                case Turn(message=message, finish_reason=reason):
                    return self._observation(await self._episode.act(message, finish_reason=reason))
                case Words(content=content):
                    return self._observation(await self._episode.act({"content": content}))
                case ToolCall():
                    moment = await self._episode.act(_turn(action, self._episode.turns))
                    return self._observation(moment, _called(action, moment))

    async def tools(self) -> list[Message]:
        """The tools as MCP lists them. Raises `ServedError` before the first reset."""
        if self._episode is None:
            raise ServedError("the episode has not begun", "Send reset first.")
        return [_listed(schema) for schema in self._tools]

    def state(self) -> Message:
        episode = self._episode
        return {
            "episode_id": self._id,
            "step_count": 0 if episode is None else episode.turns,
            "task_id": None if self._task is None else self._task.id,
            "over": episode is not None and episode.over,
        }

    async def close(self) -> None:
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        if self._episode is not None:
            await self._episode.close()
            self._episode = None

    def _chosen(self, given: ResetData) -> Task:
        tasks = self._scenario.tasks(SPLITS[given.split])
        if not tasks:
            raise ServedError(f"the scenario {self._scenario.name} has no {given.split} tasks")
        if given.task_id is not None:
            for split in _SPLITS:
                for task in self._scenario.tasks(split):
                    if task.id == given.task_id:
                        return task
            raise ServedError(f"there is no task {given.task_id!r}")
        if given.index is not None:
            return task_at(tasks, given.index)
        dice = random.SystemRandom() if given.seed is None else random.Random(f"{given.split} {given.seed}")
        return tasks[dice.randrange(len(tasks))]

    def _observation(self, moment: Moment, more: Message | None = None) -> Message:
        assert self._episode is not None
        if moment.tools:
            self._tools = moment.tools
        known = {"role": "system", "content": self._scenario.system}  # which clients have from /metadata
        text = "\n\n".join(str(each.get("content") or "") for each in moment.new if each != known)
        observation: Message = {"text": text, "messages": moment.new, **(more or {})}
        if not moment.over:
            return _answer(observation)
        trajectory = self._episode.trajectory
        found = outcome(self._scenario, trajectory)
        metadata: Message = {
            "status": trajectory.status,
            "status_reason": trajectory.status_reason,
            **{name: found[name] for name in ("success", "hand_reward") if name in found},
            "measures": {name: found[name] for name in self._scenario.measures if name in found},
        }
        reward = found.get("hand_reward", found.get("success"))
        return _answer({**observation, "metadata": metadata}, reward=reward, done=True, metadata=metadata)


def task_at(tasks: Sequence[Task], index: int) -> Task:
    """Raises `ServedError` for a number without a task."""
    if not 0 <= index < len(tasks):
        raise ServedError(f"there is no task {index}: the split has {len(tasks)}")
    return tasks[index]


def action_schema() -> Message:
    """The JSON schema of actions."""
    kinds = {
        "turn": "the agent's whole turn, in `message`",
        "message": "words, in `content`",
        "call_tool": "one tool, in `tool_name` and `arguments`",
        "list_tools": "the tools that can be called now",
    }
    return {
        "title": GAVEL_ACTION,
        "type": "object",
        "description": "; ".join(f"{name}: {what}" for name, what in kinds.items()),
        "properties": {
            "type": {"type": "string", "enum": list(kinds)},
            "message": {"type": "object", "description": "An assistant's message of OpenAI's API."},
            "finish_reason": {"type": "string", "enum": ["stop", "tool_calls", "length"]},
            "content": {"type": "string"},
            "tool_name": {"type": "string"},
            "arguments": {"type": "object"},
        },
        "required": ["type"],
    }


def observation_schema() -> Message:
    """The JSON schema of observations."""
    return {
        "title": "GavelObservation",
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What the agent is to read."},
            "messages": {"type": "array", "items": {"type": "object"}, "description": "The same as OpenAI's messages."},
            "tool_schemas": {
                "type": "array",
                "items": {"type": "object"},
                "description": "After reset: OpenAI's tools.",
            },
            "done": {"type": "boolean"},
            "reward": {"type": ["number", "null"]},
            "metadata": {"type": "object"},
        },
        "required": ["text", "messages"],
    }


def _answer(
    observation: Message, *, reward: float | None = None, done: bool = False, metadata: Message | None = None
) -> Message:
    return {
        "observation": {"metadata": {}, **observation},
        "reward": reward,
        "done": done,
        **({"metadata": metadata} if metadata else {}),
    }


def _listed(schema: Message) -> Message:
    function = cast(Message, schema["function"])
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "input_schema": function.get("parameters") or {"type": "object"},
    }


def _turn(action: ToolCall, number: int) -> Message:
    function = {"name": action.tool_name, "arguments": json.dumps(action.arguments)}
    return {"content": "", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}


def _called(action: ToolCall, moment: Moment) -> Message:
    """The result of a tool as OpenEnv's MCP environments give it."""
    text = next((str(each.get("content") or "") for each in moment.new if each.get("role") == "tool"), "")
    content = [{"type": "text", "text": text}]
    result = {"content": content, "data": text, "structured_content": None, "is_error": is_tool_error(text)}
    return {"tool_name": action.tool_name, "result": result, "error": None}


def is_tool_error(content: str) -> bool:
    """Whether a tool message is an error, as Gavel's tools write one."""
    if not content.startswith('{"error"'):
        return False
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and list(cast(Message, found)) == ["error"]
