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

from gavel.base.errors import first_error
from gavel.judge.errors import JudgeError
from gavel.judge.task_drafts.attempts import Attempts, cannot_be_checked
from gavel.judge.task_drafts.drafted_task import SAME, DraftedTask, DraftRecord, likeness, reason_to_leave_out
from gavel.judge.task_drafts.writer import Material, write_batch
from gavel.llm.client import Client
from gavel.scenarios.bridges.mcp_survey import McpSurvey

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
        batches = 0
        while len(record.used) < self.number and len(record.tasks) + record.unusable < most:
            batches += 1
            if batches > most:
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
