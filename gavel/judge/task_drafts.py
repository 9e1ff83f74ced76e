"""Tasks for the tools of an MCP server, written by a model and tried before anybody trains on them.

    look around ─▶ write a batch ─▶ drop duplicates ─▶ attempts at each ─▶ enough? split : write another batch

What the server says is material: it enters the prompt between two lines and without characters that could forge one. A
task of a batch that is not usable is dropped and counted; a batch without a usable one goes back with the reason. A
task that no attempt solves, or that every attempt solves without a tool, is left out and counted. The number of batches
is bounded, and so is the cost, by the budget of the clients.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from textwrap import shorten
from typing import Any, Literal, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from gavel.base.errors import run_all
from gavel.base.fields import problem
from gavel.base.files import write_atomically
from gavel.judge.drafts import (
    CRITERIA,
    LONGEST,
    MOST_CRITERIA,
    DraftError,
    ask_for,
    read_object,
    schema_object,
)
from gavel.judge.errors import JudgeError
from gavel.judge.prompt.call_prompt import GroupPrompts
from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.prompt.flags import with_flags
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.rubric import Rubric
from gavel.llm.client import ChatAgent, Client
from gavel.llm.errors import NotAskedError, PermanentError
from gavel.llm.types import Message, Schema, text_of
from gavel.prompts import render
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.mcp import McpServer
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import Criterion

Reason = Literal["duplicate", "unsolved", "trivial", "unchecked"]
_SURVEYED = 30_000
"""Max characters of each part of a survey."""
SAME = 0.6
"""Likeness from which two tasks are one."""
_ENDING = re.compile(r"(?:ings?|ed|es|s)$")
_NUMBER = re.compile(r"\w*\d\w*")


class Attempt(BaseModel):
    """What one attempt came to."""

    solved: bool | None
    """None = it could not be played or judged; `why` says so."""
    why: str = ""
    used_tools: bool = False
    """Whether a call of a tool was answered."""


class DraftedTask(BaseModel):
    """A task from 1 (easy) to 5 (hard)."""

    model_config = ConfigDict(strict=True, str_strip_whitespace=True)

    user: str = Field(validation_alias=AliasChoices("user", "task"), min_length=1, max_length=LONGEST)
    difficulty: int = Field(ge=1, le=5)
    criteria: list[Criterion] = Field(default_factory=list[Criterion])
    attempts: list[Attempt] = Field(default_factory=list[Attempt])
    left_out: Reason | None = None
    """Why it is not used; None = it is."""

    @property
    def solved_share(self) -> float | None:
        """Over the attempts that were judged; None when none was."""
        judged = [attempt.solved for attempt in self.attempts if attempt.solved is not None]
        return fmean(judged) if judged else None

    def reason_to_leave_out(self) -> Reason | None:
        """What the attempts at it say against it."""
        share = self.solved_share
        if not share:
            return "unchecked" if share is None else "unsolved"
        return "trivial" if share == 1 and not any(each.solved and each.used_tools for each in self.attempts) else None

    def task(self) -> Task:
        data: dict[str, Any] = {"difficulty": self.difficulty, "solved": self.solved_share}
        return Task(user=self.user, criteria=self.criteria, data=data)


class DraftRecord(BaseModel):
    address: str
    seen: str | None = None
    """What was met by looking around; None = nobody has looked yet."""
    tasks: list[DraftedTask] = Field(default_factory=list[DraftedTask])
    unusable: int = 0
    """Tasks that could not be read."""

    @property
    def used(self) -> list[DraftedTask]:
        """Those that nothing speaks against."""
        return [task for task in self.tasks if task.left_out is None]

    @property
    def left_out(self) -> str:
        """How many tasks were left out by reason: `3 duplicate, 1 unsolved`."""
        counts = Counter[str](task.left_out for task in self.tasks if task.left_out is not None)
        counts += Counter({"unusable": self.unusable})
        return ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items()))

    def save(self, path: Path) -> None:
        """Raises `JudgeError` when it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self.model_dump_json(indent=1))
        except OSError as error:
            raise JudgeError(f"{path} cannot be written: {error.strerror}", "Make room there.") from error

    @classmethod
    def read(cls, path: Path, address: str) -> "DraftRecord":
        """The draft in the file, or a new one. Raises `JudgeError` for one of another server."""
        if not path.exists():
            return cls(address=address)
        try:
            record = cls.model_validate_json(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise JudgeError(f"{path} is no draft that can go on.", "Move it away to begin again.") from error
        if record.address != address:
            raise JudgeError(
                f"{path} is a draft for {record.address}, not for {address}.", "Choose another name, or move it away."
            )
        return record


def likeness(one: str, other: str) -> float:
    """How much two tasks say the same, from 0 to 1, by the words that they have in common.

    Numbers are one word, since the same request about another order is the same task; endings, and words of up to three
    letters, do not count.
    """
    both = _words(one) | _words(other)
    return len(_words(one) & _words(other)) / len(both) if both else 1.0


def _words(text: str) -> set[str]:
    words = re.findall(r"\w+", _NUMBER.sub(" 0 ", text.casefold()))
    return {_ENDING.sub("", word) if len(word) > 4 else word for word in words if len(word) > 3 or word == "0"}


_MATERIAL = ("tools", "resources", "server_says", "seen")
"""What a model is told of a server; `seen` is what an agent met that looked around."""
_SHOWN = 200
"""Characters of an earlier task, and earlier tasks, that the model is shown."""


async def write_batch(
    client: Client,
    number: int,
    material: Mapping[str, str],
    *,
    criteria: bool = True,
    earlier: Sequence[str] = (),
    instructions: str = "",
    exact: bool = False,
) -> tuple[list[DraftedTask], int]:
    """At most `number` tasks (`exact`: no fewer either), and how many of the reply cannot be used.

    `material`: the server's `tools`, and whatever else of `_MATERIAL` is known. Raises `DraftError`,
    and `JudgeError` for a model that cannot be asked.
    """
    end = "End of the server's text"
    prompt = render(
        "scenarios/mcp_tasks.j2",
        number=number,
        criteria=criteria,
        earlier=[sanitize(" ".join(task.split()))[:_SHOWN] for task in earlier[-_SHOWN:]],
        instructions=instructions,
        # no line of the server's can be taken for the end of its text
        **{name: sanitize(material.get(name, "")).replace(end, end.replace("'", "’")).strip() for name in _MATERIAL},
    )
    task: Schema = {"task": {"type": "string"}, "difficulty": {"type": "integer"}}
    schema = schema_object(task | ({"criteria": CRITERIA} if criteria else {}))
    return await ask_for(
        client,
        [{"role": "user", "content": prompt}],
        schema_object({"scenarios": {"type": "array", "items": schema}}),
        lambda reply: read_batch(reply, number, criteria, exact),
        noun="tasks",
    )


def read_batch(reply: str, number: int, criteria: bool, exact: bool = False) -> tuple[list[DraftedTask], int]:
    """The tasks in a reply, and how many more cannot be used. Raises `DraftError` when none of them can."""
    found: object = read_object(reply).get("scenarios")
    if not isinstance(found, list):
        raise DraftError('it has no list "scenarios"')
    written = cast("list[Any]", found)
    if exact and len(written) != number:
        raise DraftError(f"it has {len(written)} scenarios, not {number}")
    tasks: list[DraftedTask] = []
    told = "there are none"
    for one in written[:number]:
        try:
            tasks.append(_read_task(one, criteria))
        except DraftError as error:
            told = error.message
            if exact:
                raise
    if not tasks:
        raise DraftError(f"none of its tasks can be used: {told}")
    return tasks, len(written[:number]) - len(tasks)


def _read_task(one: object, criteria: bool) -> DraftedTask:
    fields = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
    given = {name: fields.get(name) for name in ("task", "difficulty", "criteria")[: 2 + criteria]}
    try:
        task = DraftedTask.model_validate_json(sanitize(json.dumps(given, ensure_ascii=False)))
        if criteria and not 1 <= len(task.criteria) <= MOST_CRITERIA:
            raise DraftError(f"a task has {len(task.criteria)} criteria, not 2 to 4")
        Rubric(task.user, task.criteria)  # names and weights that make no sense together
    except ValidationError as error:
        raise DraftError(f"a task's {problem(error)}") from error
    except JudgeError as error:
        raise DraftError(error.message) from error
    return task


_LIMITS: dict[str, Any] = {"max_turns": 12, "max_seconds": 600.0}
_TOKENS = 4_096
"""Of a turn."""
_SEEN = 20_000
"""Characters of what was seen, of which each result has at most a tenth."""
_SCHEMA = schema_object({"reason": {"type": "string"}, "solved": {"type": "boolean"}})
_BATCH = 10
_DRAFTS_FOR_ONE = 3
"""Tasks that are written for each that is wanted, at most."""
_AT_ONCE = 4
"""Tasks that are attempted concurrently."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """One draft. `path` is the file of its record."""

    model: Client
    """Writes the tasks, and judges the attempts."""
    player: ChatAgent
    server: McpServer
    survey: tuple[list[Message], str]
    """The server's tools and its instructions."""
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
            record.seen = await self._look_around() if self.tries else ""
            record.save(self.path)
        for task in record.tasks:  # of an earlier run: a server that failed then may work now
            if task.left_out == "unchecked":
                task.attempts, task.left_out = [], None
        await self._check(record)
        most = _DRAFTS_FOR_ONE * self.number
        while len(record.used) < self.number and len(record.tasks) + record.unusable < most:
            await self._write(record)
            await self._check(record)
            self.tell(f"{len(record.used)} of {self.number} tasks ({record.left_out or 'none left out'})")
        return record

    async def _write(self, record: DraftRecord) -> None:
        functions, server_says = self.survey
        tools = json.dumps(functions, indent=1, ensure_ascii=False)[:_SURVEYED]
        material = {"tools": tools, "server_says": server_says[:_SURVEYED], "seen": record.seen or ""}
        number, earlier = min(_BATCH, self.number - len(record.used)), [task.user for task in record.tasks]
        tasks, unusable = await write_batch(
            self.model, number, material, earlier=earlier, instructions=self.instructions
        )
        for task in tasks:
            if any(likeness(task.user, earlier.user) >= SAME for earlier in record.tasks):
                task.left_out = "duplicate"
            record.tasks.append(task)
        record.unusable += unusable
        record.save(self.path)

    async def _check(self, record: DraftRecord) -> None:
        """Attempts each task that has none yet."""
        unchecked = [task for task in record.used if len(task.attempts) < self.tries]
        limit = asyncio.Semaphore(_AT_ONCE)

        async def check(task: DraftedTask) -> None:
            async with limit:
                for seed in range(len(task.attempts), self.tries):
                    task.attempts.append(await self._attempt(task, seed))
                task.left_out = task.reason_to_leave_out()
                record.save(self.path)
                line = "".join(filter(str.isprintable, " ".join(task.user.split())))
                self.tell(f"  {task.left_out or 'kept'}: {shorten(line, 90, placeholder='…')}")

        await run_all(check(task) for task in unchecked)
        attempts = [attempt for task in unchecked for attempt in task.attempts]
        if attempts and all(attempt.solved is None for attempt in attempts):
            raise JudgeError(
                f"none of {len(attempts)} attempts could be played and judged; the first: {attempts[0].why}",
                "Mend that, or write tasks without trying them: --attempts 0.",
            )

    async def _look_around(self) -> str:
        """What a model met that looked around; empty when it met nothing. Raises `LlmError` for a spent budget."""
        episode = await self._play(Task(user=render("scenarios/mcp_look_around.j2").strip()), 0)
        parts: list[str] = []
        for message in episode.messages():
            if (text := text_of(message).strip()) and message["role"] in ("tool", "assistant"):
                parts.append(f"{message['role']}: {text[: _SEEN // 10]}")
            for call in message.get("tool_calls") or ():
                parts.append(f"calls {call['function']['name']}({call['function']['arguments'][:200]})")
        return "\n".join(parts)[-_SEEN:]

    async def _attempt(self, task: DraftedTask, seed: int) -> Attempt:
        """Raises `LlmError` for a spent budget, and `JudgeError` when the judge cannot be asked for good."""
        episode = await self._play(task.task(), seed)
        if episode.status == "failed":
            return Attempt(solved=None, why=episode.status_reason or "it failed")
        calls = sum(message["role"] == "tool" for message in episode.messages())
        used = calls > episode.metrics.get("tool_errors", 0)
        if episode.status == "truncated":
            return Attempt(solved=False, why=episode.status_reason or "it was truncated", used_tools=used)
        request = render("scenarios/mcp_solved.j2", task=sanitize(task.user), criteria=task.criteria).strip()
        group = with_flags(canonicalize({0: episode}))
        markers = draw_markers(group, Random(group.digest))
        prompts = GroupPrompts(group, markers, Rubric.of(None), lambda labels, turns: request)
        _, shown = prompts.fit((0,), self.model.room(1)).messages
        prompt: list[Message] = [{"role": "system", "content": render("scenarios/mcp_solved_system.j2").strip()}, shown]
        try:
            solved, why = await ask_for(self.model, prompt, _SCHEMA, read_verdict, noun="a verdict")
        except JudgeError as error:
            if isinstance(error.__cause__, NotAskedError | PermanentError):
                raise  # no other attempt could be judged either
            return Attempt(solved=None, why=error.message, used_tools=used)
        return Attempt(solved=solved, why=why, used_tools=used)

    async def _play(self, task: Task, seed: int) -> Trajectory:
        system = render("scenarios/mcp_agent.j2").strip()
        scenario = Scenario("draft", system=system, tools=[self.server], tasks=[task], held_out=[], **_LIMITS)

        async def turn(request: ChatRequest) -> Any:
            return await self.player.turn(request.messages, request.tools, max_completion_tokens=request.max_tokens)

        episode = await rollout(FunctionModel(self.player.model, turn), scenario, task, max_tokens=_TOKENS, seed=seed)
        if episode.status == "failed" and self.model.budget.refused:  # no failure of this attempt
            raise self.model.budget.refused
        return episode


def read_verdict(reply: str) -> tuple[bool, str]:
    """Whether the task was solved, and why. Raises `DraftError`."""
    match read_object(reply):
        case {"solved": bool(solved), "reason": str(reason)}:
            return solved, sanitize(reason).strip()[:1_000]
        case _:
            raise DraftError('it has no "solved" that is true or false, or no "reason"')


def split(record: DraftRecord, train: int, held_out: int) -> tuple[list[DraftedTask], list[DraftedTask]]:
    """The used tasks to train on and those held out, each with its share of every difficulty.

    The same tasks are always split alike. With fewer tasks than wanted, both splits shrink in proportion. Raises
    `JudgeError` for fewer than two tasks.
    """
    used = sorted(record.used, key=lambda task: (task.difficulty, hashlib.sha256(task.user.encode()).digest()))
    if len(used) < 2:
        raise JudgeError(
            f"too few tasks can be used: {len(used)} ({record.left_out or 'none were written'}).",
            "Try a stronger model with --model, say what the tasks are about with --about, or try with --attempts 0.",
        )
    most = min(len(used), train + held_out)
    kept_back = min(max(1, round(held_out * most / (train + held_out))), most - 1) if held_out else 0
    positions = {int((index + 0.5) * len(used) / kept_back) for index in range(kept_back)}
    others = [task for index, task in enumerate(used) if index not in positions]
    return others, [used[index] for index in sorted(positions)]
