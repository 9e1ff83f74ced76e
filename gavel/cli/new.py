"""`gavel new scenario NAME`: a scenario of one page that works, with a test, to be changed into one's own.

With --mcp ADDRESS tasks are drafted for the tools of a server. `gavel scenarios` lists those that are shipped.
"""

import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jinja2
import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import group_app, single_command
from gavel.cli.options import default_judge
from gavel.cli.terminal import plain, print_table
from gavel.judge.drafts import check_can_write
from gavel.judge.task_drafts import Drafting, DraftRecord, split
from gavel.llm.budget import Budget, prices_from_environment
from gavel.llm.client import ChatAgent, Client
from gavel.prompts import render
from gavel.reports.page import write_file
from gavel.scenarios.mcp import McpServer, mcp, survey
from gavel.scenarios.scenario import BRIDGED, find_scenario, shipped_scenarios

_TEMPLATES = Path(__file__).with_name("scaffold")
_with_mcp = partial(typer.Option, rich_help_panel="With --mcp")


def scenario(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name, and that of the folder: letters, digits, _ and -.")],
    mcp: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Draft tasks for an MCP server: a command or URL.")
    ] = None,
    mcp_env: Annotated[
        list[str] | None, _with_mcp(metavar="NAME", help="Variable that a command needs; of a URL, its token.")
    ] = None,
    model: Annotated[
        str | None, _with_mcp(help="Writes the tasks, judges attempts. Default: GAVEL_JUDGE_MODEL.")
    ] = None,
    agent: Annotated[str | None, _with_mcp(help="Attempts the tasks. Default: the same model.")] = None,
    tasks: Annotated[int, _with_mcp(min=1, max=1000, help="Tasks to train on.")] = 24,
    held_out: Annotated[int, _with_mcp(min=0, max=1000, help="Tasks that are held out, beside those.")] = 8,
    attempts: Annotated[int, _with_mcp(min=0, max=16, help="At each task: can it be solved? 0 calls no tool.")] = 2,
    about: Annotated[str, _with_mcp(help="What the tasks shall be about.")] = "",
    max_cost: Annotated[
        float | None, _with_mcp("--max-cost", "--max-cost-usd", help="US dollars of all of it.")
    ] = None,
) -> None:
    """Write a folder with a scenario that runs, and a test.

    With --mcp a model looks at the server, writes tasks of graded difficulty with criteria for the judge, and attempts
    them; tasks that cannot be solved are left out. The same command goes on with a draft that was interrupted.
    """
    if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
        raise GavelError(f"{name!r} cannot be a name.", "Use letters, digits, _ and -, such as order_desk.")
    folder = Path(name)
    words = re.sub(r"[_-]+", " ", name).strip().capitalize()
    values: dict[str, Any] = {"name": name.replace("-", "_"), "folder": name, "title": words}
    sources = {each.opts[0]: context.get_parameter_source(each.name or "") for each in context.command.params}
    typed = [name for name, each in sources.items() if name[:1] == "-" and each and each.name == "COMMANDLINE"]
    if mcp is None and typed:
        raise GavelError(f"{typed[0]} is for a scenario that a model drafts.", "Name its server: --mcp ADDRESS.")
    goes_on = mcp is not None and (folder / RECORD).is_file() and not (folder / "scenario.py").exists()
    if folder.exists() and not goes_on:
        raise GavelError(f"{folder} is there already.", "Choose another name, or move it away.")
    if mcp is None:
        return _write(folder, values)
    variables, budget = mcp_env or [], Budget(max_cost)
    client = Client(model or default_judge(), prices=prices_from_environment(), budget=budget)
    check_can_write(client, "tasks")
    server, player = _server(mcp, variables), ChatAgent(agent or client.name, budget)
    record = DraftRecord.read(folder / RECORD, mcp)
    found = run_interruptibly(survey(server))
    number = tasks + held_out
    typer.echo(f"{server}: {counted(len(found[0]), 'tool')}. Drafting {counted(number, 'task')} with {client.name}.")
    if attempts:
        typer.echo(
            f"{player.model} tries each of them {counted(attempts, 'time')}: "
            "its calls are real, and change what the server holds."
        )
    drafting = Drafting(client, player, server, found, folder / RECORD, number, attempts, about, tell=typer.echo)
    try:
        drafted = split(run_interruptibly(drafting.run(record)), tasks, held_out)
    except BaseException:
        if record.seen is not None:
            kept = counted(len(record.tasks), "drafted task")
            typer.echo(
                f"cost: {client.budget.cost}; {folder / RECORD} keeps {kept}: the same command goes on.", err=True
            )
        raise
    used = [each for tasks_of_split in drafted for each in tasks_of_split]
    typer.echo(f"{counted(len(drafted[0]), 'task')} to train on, {len(drafted[1])} held out.")
    if record.left_out:
        typer.echo(f"Left out: {record.left_out}.")
    if always := sum(task.solved_share == 1 for task in used):
        typer.echo(f"Solved by every attempt: {always} (a policy that is as good learns nothing from them).")
    if len(used) < number:
        typer.echo(f"warning: {number} were wanted; the drafts of this model do not come to more.", err=True)
    typer.echo(f"cost: {client.budget.cost}")
    values |= {
        "address": repr(mcp),
        "is_command": not server.is_url,
        "variables": variables,
        "system": textwrap.fill(render("scenarios/mcp_agent.j2").strip(), 115),
        "model": client.name if re.fullmatch(r"[\w./:@-]+", client.name) else "MODEL",
    }
    on_file = {
        split: [each.task().model_dump(mode="json", exclude_defaults=True) for each in found]
        for split, found in zip(("train", "held_out"), drafted, strict=True)
    }
    _write(folder, values, json.dumps(on_file, indent=1, ensure_ascii=False) + "\n")
    (folder / RECORD).rename(folder / "drafts.json")


def _write(folder: Path, values: Mapping[str, Any], tasks: str | None = None) -> None:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    files, of_mcp = ({}, "") if tasks is None else ({"tasks.json": tasks}, "mcp_")
    for file, template in (("scenario.py", f"{of_mcp}scenario"), ("test_scenario.py", f"test_{of_mcp}scenario")):
        text = (_TEMPLATES / f"{template}.py.j2").read_text("utf-8")
        files[file] = environment.from_string(text).render(values)
    for file, text in files.items():
        write_file(folder / file, text)
    typer.echo(f"Written: {', '.join(str(folder / file) for file in files)}")
    judge = f" --judge {values['model']}" if "model" in values else ""
    typer.echo(f"Next: gavel check {shlex.quote(str(folder / 'scenario.py'))}{judge}")


RECORD = "drafting.json"
"""File in the scenario's folder while its tasks are drafted."""


def _server(address: str, variables: Sequence[str]) -> McpServer:
    """The server with what it needs of the environment: a command the variables, a URL the one as a bearer token."""
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise GavelError(
                "--mcp-env takes the name of a variable, not its value.", "Write --mcp-env ORDERS_API_KEY."
            )
        if name not in os.environ:
            raise GavelError(f"the variable {name} is not set.", "Set it in the environment or in .env.")
    values = {name: os.environ[name] for name in variables}
    if not values or "://" not in address:
        return mcp(address, env=values)
    if len(values) > 1:
        raise GavelError("a server at a URL takes one token.", "Give --mcp-env once.")
    return mcp(address, headers={"Authorization": f"Bearer {values[variables[0]]}"})


def scenarios() -> None:
    """List the shipped scenarios with their number of tasks."""
    rows: list[tuple[str, ...]] = []
    for name in shipped_scenarios():
        scenario = find_scenario(name)
        text = (sys.modules[f"gavel.scenarios.library.{name}"].__doc__ or "").strip().partition("\n")[0]
        train, held_out = (len(scenario.tasks(split)) for split in ("train", "held_out"))
        rows.append((name, f"{train:,}", f"{held_out:,}", text))
    console = Console()
    print_table(console, ("scenario", "train", "held out", "what the agent does"), rows, right=("train", "held out"))
    console.print(plain(f"With a package of their own, see docs/scenarios.md: {', '.join(BRIDGED)}."))


app = group_app("Write the beginning of something of your own.", {"scenario": scenario})
scenarios_app = single_command(scenarios)
