"""`gavel new scenario NAME`: a scenario of one page that works, with a test, to be changed into one's own."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jinja2
import typer

from gavel.base.errors import GavelError
from gavel.cli.lazy_commands import PlainCommand, PlainGroup

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=PlainGroup,
    no_args_is_help=True,
    help="Write the beginning of something of your own.",
)
_TEMPLATES = Path(__file__).with_name("scaffold")
_OF_A_SERVER = "With --mcp"


class NewError(GavelError):
    """Nothing was written."""


@app.callback()
def _group() -> None: ...


@app.command(cls=PlainCommand)
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
        given = [option for option in context.params if _is_typed(context, option) and option not in ("name", "mcp")]
        if given:
            raise NewError(
                f"--{given[0].replace('_', '-')} is for a scenario that a model drafts.",
                "Name its server: --mcp ADDRESS.",
            )
        if folder.exists():
            raise NewError(f"{folder} is there already.", "Choose another name, or move it away.")
        _write(folder, {"scenario.py": "scenario.py.j2", "test_scenario.py": "test_scenario.py.j2"}, values)
        return
    from gavel.cli.interrupts import run_interruptibly
    from gavel.cli.new_from_mcp import RECORD, McpDraft, check_is_new, draft

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


def _is_typed(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


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
