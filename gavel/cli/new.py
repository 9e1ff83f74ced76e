"""`gavel new scenario NAME`: a scenario of one page that works, with a test, to be changed into one's own."""

import re
from pathlib import Path
from typing import Annotated

import jinja2
import typer

from gavel.llm.errors import GavelError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Write the beginning of something of your own.",
)
_FILES = ("scenario.py", "test_scenario.py")
_TEMPLATES = Path(__file__).with_name("scaffold")


class NewError(GavelError):
    """Nothing was written."""


@app.callback()
def _group() -> None: ...


@app.command()
def scenario(
    name: Annotated[str, typer.Argument(help="Its name, and that of the folder: letters, digits, _ and -.")],
) -> None:
    """Write a folder with a scenario that runs, and a test."""
    if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
        raise NewError(f"{name!r} cannot be a name.", "Use letters, digits, _ and -, such as order_desk.")
    folder = Path(name)
    if folder.exists():
        raise NewError(f"{folder} is there already.", "Choose another name, or move it away.")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    words = re.sub(r"[_-]+", " ", name).strip().capitalize()
    values = {"name": name.replace("-", "_"), "folder": name, "title": words}
    texts = {file: environment.from_string((_TEMPLATES / f"{file}.j2").read_text("utf-8")) for file in _FILES}
    try:
        folder.mkdir()
        for file, text in texts.items():
            (folder / file).write_text(text.render(values), encoding="utf-8")
    except OSError as error:
        raise NewError(f"{folder} cannot be written: {error.strerror}", "Make room there, or go elsewhere.") from error
    typer.echo(f"Written: {', '.join(str(folder / file) for file in _FILES)}")
    typer.echo(f"Next: gavel check {folder / _FILES[0]}")
