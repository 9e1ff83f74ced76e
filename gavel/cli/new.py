"""`gavel new scenario NAME`: a scenario of one page that works, with a test, to be changed into one's own.

With --mcp ADDRESS tasks are drafted for the tools of a server.
"""

import json
import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jinja2
import typer

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.lazy_commands import group_app
from gavel.cli.options import typed_options
from gavel.cli.settings import Settings
from gavel.cli.terminal import run_interruptibly
from gavel.judge.drafts import check_can_write
from gavel.judge.task_drafts import Attempts, DraftedTask, Drafting, DraftRecord, TaskDraft, split, summary
from gavel.llm.budget import Budget
from gavel.llm.chat_agent import ChatAgent
from gavel.llm.client import Client
from gavel.llm.prices import prices_from_environment
from gavel.prompts import render
from gavel.scenarios.mcp import McpServer, mcp, survey

_TEMPLATES = Path(__file__).with_name("scaffold")
_OF_A_SERVER = "With --mcp"


class NewError(GavelError):
    """Nothing was written."""


def scenario(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name, and that of the folder: letters, digits, _ and -.")],
    mcp: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Draft tasks for the tools of this MCP server, a command or URL."),
    ] = None,
    mcp_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An environment variable that the server needs: passed on to a command, to a URL the bearer token.",
            rich_help_panel=_OF_A_SERVER,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Writes the tasks and judges the attempts. Default: GAVEL_JUDGE_MODEL.", rich_help_panel=_OF_A_SERVER
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Attempts the tasks. Default: the same model.", rich_help_panel=_OF_A_SERVER)
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, max=1000, help="Tasks to train on.", rich_help_panel=_OF_A_SERVER)] = 24,
    held_out: Annotated[
        int, typer.Option(min=0, max=1000, help="Tasks that are held out, beside those.", rich_help_panel=_OF_A_SERVER)
    ] = 8,
    attempts: Annotated[
        int,
        typer.Option(
            min=0,
            max=16,
            help="Attempts at each task, to see whether it can be solved. 0 calls no tool.",
            rich_help_panel=_OF_A_SERVER,
        ),
    ] = 2,
    about: Annotated[str, typer.Option(help="What the tasks shall be about.", rich_help_panel=_OF_A_SERVER)] = "",
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost", "--max-cost-usd", help="US dollars that all of it may cost.", rich_help_panel=_OF_A_SERVER
        ),
    ] = None,
) -> None:
    """Write a folder with a scenario that runs, and a test.

    With --mcp a model looks at the server, writes tasks of graded difficulty with criteria for the judge, and attempts
    them; tasks that cannot be solved are left out. The same command goes on with a draft that was interrupted.
    """
    if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
        raise NewError(f"{name!r} cannot be a name.", "Use letters, digits, _ and -, such as order_desk.")
    folder = Path(name)
    words = re.sub(r"[_-]+", " ", name).strip().capitalize()
    values: Mapping[str, Any] = {"name": name.replace("-", "_"), "folder": name, "title": words}
    if mcp is None:
        if typed := typed_options(context):
            raise NewError(f"{typed[0]} is for a scenario that a model drafts.", "Name its server: --mcp ADDRESS.")
        if folder.exists():
            raise NewError(f"{folder} is there already.", "Choose another name, or move it away.")
        _write(folder, {"scenario.py": "scenario.py.j2", "test_scenario.py": "test_scenario.py.j2"}, values)
        return

    check_is_new(folder, NewError)
    wanted = McpDraft(mcp, _names(mcp_env), model, agent, tasks, held_out, attempts, about, max_cost)
    drafted = run_interruptibly(draft(folder, wanted))
    templates = {"scenario.py": "mcp_scenario.py.j2", "test_scenario.py": "test_mcp_scenario.py.j2"}
    _write(folder, templates, {**values, **drafted}, {"tasks.json": drafted["tasks.json"]})
    (folder / RECORD).rename(folder / "drafts.json")


def _names(variables: list[str] | None) -> list[str]:
    for name in variables or ():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise NewError("--mcp-env takes the name of a variable, not its value.", "Write --mcp-env ORDERS_API_KEY.")
    return variables or []


def _write(
    folder: Path, templates: Mapping[str, str], values: Mapping[str, Any], texts: Mapping[str, str] | None = None
) -> None:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    rendered = {
        file: environment.from_string((_TEMPLATES / template).read_text("utf-8")).render(values)
        for file, template in templates.items()
    }
    files = {**(texts or {}), **rendered}
    try:
        folder.mkdir(exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NewError(f"{folder} cannot be written: {error.strerror}", "Make room there, or go elsewhere.") from error
    typer.echo(f"Written: {', '.join(str(folder / file) for file in files)}")
    judge = f" --judge {values['model']}" if "model" in values else ""
    typer.echo(f"Next: gavel check {folder / 'scenario.py'}{judge}")


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


app = group_app("Write the beginning of something of your own.", {"scenario": scenario})
