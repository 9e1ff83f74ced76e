"""Drafts tasks for the tools of an MCP server: writes them, drops duplicates, and sees by attempts which can be solved.

    look around ─▶ write a batch ─▶ drop duplicates ─▶ attempts at each ─▶ enough? split : write another batch

A task that no attempt solves, or that every attempt solves without a tool, is left out and counted. The number of
batches is bounded, and so is the cost, by the budget of the clients.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gavel.base.errors import first_error
from gavel.judge.drafts import DraftError, ask_for, read_object
from gavel.judge.errors import JudgeError
from gavel.judge.prompt.call_prompt import GroupPrompts, with_request
from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.prompt.flags import with_flags
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.rubric import Rubric
from gavel.judge.task_drafts.writer import (
    SAME,
    Attempt,
    DraftedTask,
    DraftRecord,
    Material,
    likeness,
    reason_to_leave_out,
    write_batch,
)
from gavel.llm.chat_agent import ChatAgent
from gavel.llm.client import Client
from gavel.llm.errors import LlmError, NotAskedError, PermanentError
from gavel.llm.types import Schema, text_of
from gavel.prompts import render
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.mcp import McpServer, McpSurvey
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


DIFFICULTIES = (1, 2, 3, 4, 5)
_BATCH = 10
_DRAFTS_FOR_ONE = 3
"""Tasks that are written for each that is wanted, at most."""
_AT_ONCE = 4
"""Tasks that are attempted concurrently."""


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """Tasks of the two splits, and what was left out."""

    train: list[DraftedTask]
    held_out: list[DraftedTask]
    left_out: Counter[str]
    """By reason."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """One draft. `path` is the file of its record."""

    writer: Client
    attempts: Attempts
    survey: McpSurvey
    path: Path
    number: int
    """Of tasks that are wanted."""
    tries: int
    """Attempts at each task; 0 = none, and no tool is called."""
    instructions: str = ""
    tell: Callable[[str], None] = lambda line: None

    async def run(self, record: DraftRecord) -> DraftRecord:
        """The record with as many tasks as are wanted, or fewer when too many drafts are of no use.

        Raises `JudgeError` and `LlmError` (of a spent budget, too); the record on disk has what there is by then.
        """
        if record.seen is None:
            record.seen = await self.attempts.look_around() if self.tries else ""
            record.save(self.path)
        for task in record.tasks:  # of an earlier run: a server that failed then may work now
            if task.left_out == "unchecked":
                task.attempts, task.left_out = [], None
        await self._check(record)
        most = _DRAFTS_FOR_ONE * self.number
        for _ in range(most):
            if len(record.used) >= self.number or len(record.tasks) + record.unusable >= most:
                break
            await self._write(record)
            await self._check(record)
            self.tell(f"{len(record.used)} of {self.number} tasks ({summary(left_out(record)) or 'none left out'})")
        return record

    async def _write(self, record: DraftRecord) -> None:
        number = min(_BATCH, self.number - len(record.used))
        survey = self.survey
        material = Material(
            survey.described_tools, survey.resources, survey.prompts, survey.instructions, record.seen or ""
        )
        batch = await write_batch(
            self.writer,
            material,
            number,
            difficulties=wanted_difficulties(record.used, self.number)[:number],
            earlier=[task.user for task in record.tasks],
            instructions=self.instructions,
        )
        for task in batch.tasks:
            if any(likeness(task.user, earlier.user) >= SAME for earlier in record.tasks):
                task.left_out = "duplicate"
            record.tasks.append(task)
        record.unusable += batch.unusable
        record.save(self.path)

    async def _check(self, record: DraftRecord) -> None:
        """Attempts each task that has none yet."""
        if not self.tries:
            return
        unchecked = [task for task in record.used if len(task.attempts) < self.tries]
        limit = asyncio.Semaphore(_AT_ONCE)

        async def check(task: DraftedTask) -> None:
            async with limit:
                for seed in range(len(task.attempts), self.tries):
                    task.attempts.append(await self.attempts.attempt(task, seed))
                task.left_out = reason_to_leave_out(task.attempts)
                record.save(self.path)
                self.tell(f"  {task.left_out or 'kept'}: {_one_line(task.user)}")

        with first_error():
            async with asyncio.TaskGroup() as group:
                for task in unchecked:
                    group.create_task(check(task))
        if (error := cannot_be_checked(unchecked)) is not None:
            for task in unchecked:  # they are tried again by the next run
                task.attempts, task.left_out = [], None
            record.save(self.path)
            raise error


def wanted_difficulties(tasks: Sequence[DraftedTask], number: int) -> list[int]:
    """The difficulties that are missing from an even spread of `number` tasks, the rarest first."""
    have = Counter(task.difficulty for task in tasks)
    wanted: list[int] = []
    for _ in range(number - len(tasks)):
        rarest = min(DIFFICULTIES, key=lambda each: have[each])
        have[rarest] += 1
        wanted.append(rarest)
    return wanted


def left_out(record: DraftRecord) -> Counter[str]:
    """How many tasks were left out, by reason."""
    counts = Counter[str](task.left_out for task in record.tasks if task.left_out is not None)
    return counts + Counter({"unusable": record.unusable})


def summary(counts: Counter[str]) -> str:
    """`3 duplicate, 1 unsolved`"""
    return ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items()))


def _one_line(text: str) -> str:
    """The beginning of a text, for a terminal."""
    line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    return line if len(line) <= 90 else f"{line[:89]}…"


def split(record: DraftRecord, train: int, held_out: int) -> TaskDraft:
    """The used tasks in two, each with its share of every difficulty; the same for the same tasks.

    With fewer tasks than wanted, both splits shrink in proportion. Raises `JudgeError` for fewer than two tasks.
    """
    used = sorted(record.used, key=lambda task: (task.difficulty, hashlib.sha256(task.user.encode()).digest()))
    if len(used) < 2:
        reasons = summary(left_out(record)) or "none were written"
        raise JudgeError(
            f"too few tasks can be used: {len(used)} ({reasons}).",
            "Try a stronger model with --model, say what the tasks are about with --about, or try with --attempts 0.",
        )
    most = min(len(used), train + held_out)
    kept_back = min(max(1, round(held_out * most / (train + held_out))), most - 1) if held_out else 0
    positions = {int((index + 0.5) * len(used) / kept_back) for index in range(kept_back)}
    others = [task for index, task in enumerate(used) if index not in positions]
    return TaskDraft(others, [used[index] for index in sorted(positions)], left_out(record))
