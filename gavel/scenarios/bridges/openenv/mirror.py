"""One episode of a scenario that another Gavel serves: the same messages, tools and outcome as in its own process.

Whole turns are sent, as the agent wrote them, so bad arguments and several calls of a turn are answered as they are
there. Turns that no tool of the world has seen, such as a call of a tool that is not there, are sent before the next.
"""

from typing import Any, cast

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.bridges.openenv.served import is_tool_error
from gavel.scenarios.bridges.openenv.sessions import OpenEnvServer, Session
from gavel.scenarios.bridges.openenv.wire import OpenEnvError, RefusedError, Stepped
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tool_world import ToolWorld
from gavel.scenarios.tools import Done, ToolResult
from gavel.scenarios.trajectory import Trajectory

SERVED = "served/"
"""Before the names of the scenario's measures, among the trajectory's metrics."""


class MirrorWorld(ToolWorld):
    """An episode of one task."""

    def __init__(self, server: OpenEnvServer) -> None:
        self._server = server
        self._session: Session | None = None
        self._sent = 0
        self._results: list[ToolResult] = []
        self._words: str | None = None
        self._end: Stepped | None = None
        self.schemas: list[Message] = []

    async def reset(self, task: Task, episode: Episode) -> str | None:
        self._trajectory = episode.trajectory
        wanted = cast(Message, task.data["reset"])
        seed = {} if episode.seed is None else {"seed": episode.seed}
        self._session, first = await self._server.begin({**wanted, **seed})
        self._keep(first)
        if self._end is not None:
            raise OpenEnvError(f"the episode of {self._server} was over before the agent's first turn")
        schemas: Any = first.observation.get("tool_schemas") or []
        self.schemas = list(schemas)
        return str(first.observation.get("text") or "") or None

    async def call(self, name: str, arguments: str) -> ToolResult:
        position = self._answered()
        await self._send_turns()
        if position >= len(self._results):
            raise OpenEnvError(f"{self._server} gave no result for the call of {name}")
        return self._results[position]

    async def observe(self, action: str) -> Done | str | None:
        await self._send_turns()
        if self._end is None:
            return self._words or ""
        return None if self._words is None else Done(self._words)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def outcome(self) -> Message:
        """What the server says of the episode. One that was ended here is ended there first."""
        await self._send_turns()
        if self._end is None:
            await self._send({"content": ""}, "length")
        if self._end is None:
            raise OpenEnvError(f"{self._server} does not end an episode whose turn was cut off")
        return self._end.metadata

    def _answered(self) -> int:
        """Tool calls of the agent's last turn that have an answer."""
        count = 0
        for item in reversed(self._trajectory.messages_and_choices):
            if isinstance(item, Choice):
                break
            count += item.get("role") == "tool"
        return count

    async def _send_turns(self) -> None:
        """Sends the agent's turns that were not sent yet."""
        turns = [item for item in self._trajectory.messages_and_choices if isinstance(item, Choice)]
        for choice in turns[self._sent :]:
            self._sent += 1
            if self._end is None:
                message = choice.message.model_dump(mode="json", exclude_none=True, include={"content", "tool_calls"})
                await self._send(message, choice.finish_reason)

    async def _send(self, message: Message, reason: str) -> None:
        assert self._session is not None
        ended = reason if reason in ("stop", "tool_calls", "length") else None
        try:
            answer = await self._session.step({"type": "turn", "message": message, "finish_reason": ended})
        except RefusedError as error:
            raise OpenEnvError(error.message) from error
        self._keep(answer)

    def _keep(self, answer: Stepped) -> None:
        messages: Any = answer.observation.get("messages")
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in cast("list[Any]", messages)):
            raise OpenEnvError(f"{self._server} gave no messages: it is another version of Gavel")
        new = cast("list[Message]", messages)
        contents = [str(each.get("content") or "") for each in new if each.get("role") == "tool"]
        self._results = [ToolResult(text, error=is_tool_error(text), done=answer.done) for text in contents]
        said = [str(each.get("content") or "") for each in new if each.get("role") == "user"]
        self._words = "\n\n".join(said) if said else None
        if not answer.done:
            return
        self._end = answer
        told, trajectory = answer.metadata, self._trajectory
        if told.get("status") == "failed":
            raise OpenEnvError(f"the episode failed on {self._server}: {told.get('status_reason')}")
        if told.get("status") == "truncated":
            trajectory.status, trajectory.status_reason = "truncated", str(told.get("status_reason"))
        measures: Any = told.get("measures") or {}
        trajectory.metrics |= {f"{SERVED}{name}": float(value) for name, value in cast(Message, measures).items()}


class TellingWorld(MirrorWorld):
    """Whose scenario can tell success."""

    async def success(self, trajectory: Trajectory) -> float:
        return float((await self.outcome())["success"])


class RatingWorld(MirrorWorld):
    """Whose scenario has a hand reward."""

    async def reward(self, trajectory: Trajectory) -> float:
        return float((await self.outcome())["hand_reward"])


class TellingAndRatingWorld(TellingWorld, RatingWorld):
    """Whose scenario has both."""


def mirror_kind(*, success: bool, hand_reward: bool) -> type[MirrorWorld]:
    """The world for a scenario that can tell so much of its episodes."""
    kinds = {
        (False, False): MirrorWorld,
        (True, False): TellingWorld,
        (False, True): RatingWorld,
        (True, True): TellingAndRatingWorld,
    }
    return kinds[success, hand_reward]
