"""What `gavel new scenario NAME --mcp ADDRESS` does: drafts tasks for the tools of a server."""

import json
import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.settings import Settings
from gavel.judge.drafts import check_can_write
from gavel.judge.task_drafts.drafting import Attempts, Drafting, TaskDraft, split, summary
from gavel.judge.task_drafts.writer import DraftedTask, DraftRecord
from gavel.llm.budget import Budget
from gavel.llm.chat_agent import ChatAgent
from gavel.llm.client import Client
from gavel.llm.prices import prices_from_environment
from gavel.prompts import render
from gavel.scenarios.mcp import McpServer, mcp, survey

RECORD = "drafting.json"
"""In the scenario's folder while its tasks are drafted."""


@dataclass(frozen=True, slots=True)
class McpDraft:
    """What the user asks for."""

    address: str
    variables: list[str]
    """Of the environment, that the server needs."""
    model: str | None
    agent: str | None
    tasks: int
    held_out: int
    attempts: int
    about: str
    max_cost: float | None


async def draft(folder: Path, wanted: McpDraft) -> Mapping[str, Any]:
    """Drafts the tasks into `folder / RECORD`; what the templates are rendered with, and the file of tasks.

    Raises `GavelError`; what there is by then stays in the record, and the next call goes on from there.
    """
    budget = Budget(wanted.max_cost)
    client = Client(wanted.model or Settings.read().judge, prices=prices_from_environment(), budget=budget)
    check_can_write(client, "tasks")
    server = _server(wanted)
    attempts = Attempts(server, ChatAgent(wanted.agent or client.name, budget), client)
    record = DraftRecord.read(folder / RECORD, wanted.address)
    found = await survey(server)
    number = wanted.tasks + wanted.held_out
    typer.echo(f"{server}: {counted(len(found.tools), 'tool')}. Drafting {counted(number, 'task')} with {client.name}.")
    if wanted.attempts:
        typer.echo(
            f"{attempts.player.model} tries each of them {counted(wanted.attempts, 'time')}: "
            "its calls are real, and change what the server holds."
        )
    drafting = Drafting(
        client, attempts, found, folder / RECORD, number, wanted.attempts, wanted.about, tell=typer.echo
    )
    try:
        drafted = split(await drafting.run(record), wanted.tasks, wanted.held_out)
    except BaseException:
        if record.seen is not None:
            kept = counted(len(record.tasks), "drafted task")
            typer.echo(f"cost: {budget.cost}; {folder / RECORD} keeps {kept}: the same command goes on.", err=True)
        raise
    _say(drafted, number)
    typer.echo(f"cost: {budget.cost}")
    return {
        "address": repr(wanted.address),
        "is_command": server.url is None,
        "variables": wanted.variables,
        "system": textwrap.fill(render("scenarios/mcp_agent.j2").strip(), 115),
        "model": client.name if re.fullmatch(r"[\w./:@-]+", client.name) else "MODEL",
        "tasks.json": _tasks(drafted),
    }


def _server(wanted: McpDraft) -> McpServer:
    """With what it needs of the environment: a command the variables, a URL the one as a bearer token."""
    if missing := [name for name in wanted.variables if name not in os.environ]:
        raise GavelError(f"the variable {missing[0]} is not set.", "Set it in the environment or in .env.")
    values = {name: os.environ[name] for name in wanted.variables}
    if not values or "://" not in wanted.address:
        return mcp(wanted.address, env=values)
    if len(values) > 1:
        raise GavelError("a server at a URL takes one token.", "Give --mcp-env once.")
    return mcp(wanted.address, headers={"Authorization": f"Bearer {values[wanted.variables[0]]}"})


def _say(drafted: TaskDraft, number: int) -> None:
    used = [*drafted.train, *drafted.held_out]
    typer.echo(f"{counted(len(drafted.train), 'task')} to train on, {len(drafted.held_out)} held out.")
    if drafted.left_out:
        typer.echo(f"Left out: {summary(drafted.left_out)}.")
    if always := sum(task.solved_share == 1 for task in used):
        typer.echo(f"Solved by every attempt: {always} (a policy that is as good learns nothing from them).")
    if len(used) < number:
        typer.echo(f"warning: {number} were wanted; the drafts of this model do not come to more.", err=True)


def _tasks(drafted: TaskDraft) -> str:
    splits = {"train": drafted.train, "held_out": drafted.held_out}
    values = {name: [_on_file(task) for task in tasks] for name, tasks in splits.items()}
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _on_file(task: DraftedTask) -> dict[str, Any]:
    return task.task().model_dump(mode="json", exclude_defaults=True)


def check_is_new(folder: Path, error: type[GavelError]) -> None:
    """Raises the error for a folder that holds anything but a draft in progress."""
    if folder.exists() and not ((folder / RECORD).is_file() and not (folder / "scenario.py").exists()):
        raise error(f"{folder} is there already.", "Choose another name, or move it away.")
