"""Attempts of a model with a server's tools: to look around first, and to see whether the tasks can be solved.

Every attempt has a session of its own. What a server or the model does wrong costs that attempt, which then counts for
nothing; a spent budget ends the whole draft.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from gavel.judge.drafts import DraftError, ask_for, read_object
from gavel.judge.errors import JudgeError
from gavel.judge.prompt.call_prompt import GroupPrompts, with_request
from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.prompt.flags import with_flags
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.rubric import Rubric
from gavel.judge.task_drafts.drafted_task import Attempt, DraftedTask
from gavel.llm.chat_agent import ChatAgent
from gavel.llm.client import Client
from gavel.llm.errors import LlmError, NotAskedError, PermanentError
from gavel.llm.types import Schema, text_of
from gavel.prompts import render
from gavel.scenarios.bridges.mcp import McpServer
from gavel.scenarios.function_model import ChatRequest, FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

_TURNS = 12
_TOKENS = 4_096
"""Of a turn."""
_SECONDS = 600.0
_SEEN = 20_000
"""Characters of what was seen, of which each result has at most a tenth."""
_SCHEMA: Schema = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "solved": {"type": "boolean"}},
    "required": ["reason", "solved"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Attempts:
    """Plays with a server's tools, and asks a model what came of it."""

    server: McpServer
    player: ChatAgent
    judge: Client

    async def look_around(self) -> str:
        """What a model met that looked around; empty when it met nothing. Raises `LlmError` for a spent budget."""
        episode = await self._play(Task(user=render("scenarios/mcp_look_around.j2").strip()), 0)
        parts: list[str] = []
        for message in episode.messages():
            if (text := text_of(message).strip()) and message["role"] in ("tool", "assistant"):
                parts.append(f"{message['role']}: {text[: _SEEN // 10]}")
            for call in message.get("tool_calls") or ():
                parts.append(f"calls {call['function']['name']}({call['function']['arguments'][:200]})")
        return "\n".join(parts)[-_SEEN:]

    async def attempt(self, task: DraftedTask, seed: int) -> Attempt:
        """Raises `LlmError` for a spent budget, and `JudgeError` when the judge cannot be asked for good."""
        episode = await self._play(task.task(), seed)
        if episode.status == "failed":
            return Attempt(solved=None, why=episode.status_reason or "it failed")
        calls = sum(message["role"] == "tool" for message in episode.messages())
        used = calls > episode.metrics.get("tool_errors", 0)
        if episode.status == "truncated":
            return Attempt(solved=False, why=episode.status_reason or "it was truncated", used_tools=used)
        try:
            solved, why = await self._verdict(task, episode)
        except JudgeError as error:
            if isinstance(error.__cause__, NotAskedError | PermanentError):
                raise  # no other attempt could be judged either
            return Attempt(solved=None, why=error.message, used_tools=used)
        return Attempt(solved=solved, why=why, used_tools=used)

    async def _play(self, task: Task, seed: int) -> Trajectory:
        system = render("scenarios/mcp_agent.j2").strip()
        limits: dict[str, Any] = {"max_turns": _TURNS, "max_seconds": _SECONDS}
        scenario = Scenario("draft", system=system, tools=[self.server], tasks=[task], held_out=[], **limits)
        refused: list[LlmError] = []

        async def turn(request: ChatRequest) -> Any:
            try:
                return await self.player.turn(request.messages, request.tools, max_completion_tokens=request.max_tokens)
            except LlmError as error:  # the rollout would take a spent budget for a failure of this attempt
                refused.append(error)
                raise

        episode = await rollout(FunctionModel(self.player.model, turn), scenario, task, max_tokens=_TOKENS, seed=seed)
        if refused:
            raise refused[0]
        return episode

    async def _verdict(self, task: DraftedTask, episode: Trajectory) -> tuple[bool, str]:
        group = with_flags(canonicalize({0: episode}))
        prompts = GroupPrompts(group, draw_markers(group, Random(group.digest)), Rubric.of(None))
        prompt = prompts.fit([0], self.judge.room(1))
        request = render("scenarios/mcp_solved.j2", task=sanitize(task.user), criteria=task.criteria)
        messages = [
            {"role": "system", "content": render("scenarios/mcp_solved_system.j2").strip()},
            {"role": "user", "content": with_request(text_of(prompt.messages[-1]), request)},
        ]
        return await ask_for(self.judge, messages, _SCHEMA, read_verdict, noun="a verdict")


def read_verdict(reply: str) -> tuple[bool, str]:
    """Whether the task was solved, and why. Raises `DraftError`."""
    match read_object(reply):
        case {"solved": bool(solved), "reason": str(reason)}:
            return solved, sanitize(reason).strip()[:1_000]
        case _:
            raise DraftError('it has no "solved" that is true or false, or no "reason"')


def cannot_be_checked(tasks: list[DraftedTask]) -> JudgeError | None:
    """The error of a server or model with which no attempt at all can be played; None when one could be."""
    attempts = [attempt for task in tasks for attempt in task.attempts]
    if not attempts or any(attempt.solved is not None for attempt in attempts):
        return None
    return JudgeError(
        f"none of {len(attempts)} attempts could be played and judged; the first: {attempts[0].why}",
        "Mend that, or write tasks without trying them: --attempts 0.",
    )
