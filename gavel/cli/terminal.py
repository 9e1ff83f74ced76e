"""What is printed: Gavel's own lines only, and text from files and models as plain characters."""

import codecs
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.text import Text

from gavel.base.errors import GavelError

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "LITELLM_LOG": "ERROR",
}

TRAINER = "loading torch and transformers"
"""What the commands that train or sample wait for first."""

_ASCII = {
    "✓": "yes",
    "✗": "x",
    "–": "-",
    "—": "-",
    "·": "-",
    "→": "->",
    "…": "...",
    "±": "+/-",
    "×": "x",
    "τ": "tau",
    "Δ": "delta",
    "≤": "<=",
    "≥": ">=",
    "−": "-",
    "’": "'",
    "“": '"',
    "”": '"',
}
"""What is printed for characters that an encoding lacks; for the rest, their escapes."""


def replace_unprintable() -> None:
    """Characters that the encoding of stdout or stderr lacks are printed as others, which mean the same."""
    codecs.register_error("gavel.printable", _printable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gavel.printable")


def _printable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(
        _ASCII.get(character) or character.encode("ascii", "backslashreplace").decode() for character in lost
    ), error.end


def plain(text: str, style: str = "") -> Text:
    """Text of judges, trajectories and files, with markup not interpreted and control characters replaced."""
    return Text("".join(character if character.isprintable() else " " for character in text), style)


class LiveText(ProgressColumn):
    """Text of a live line, read anew whenever the line is drawn."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text(), style="dim", no_wrap=True, overflow="ellipsis")


def print_error(error: GavelError) -> None:
    """Prints a user's mistake and its remedy to stderr."""
    console = Console(stderr=True)
    console.print(Text.assemble(("error:", "bold red"), " ", error.message), soft_wrap=True)
    if error.remedy:
        console.print(Text(f"       {error.remedy}"), soft_wrap=True)


def print_warning(text: str) -> None:
    """Prints to stderr what does not stop a command."""
    Console(stderr=True).print(plain(f"warning: {text}", "yellow"), soft_wrap=True)


def silence_libraries() -> None:
    """Keeps warnings, logs and progress bars of installed libraries out of the terminal.

    Gavel's own log and that of the user's code stay. Call it before the libraries are imported; `python -W …` and
    variables that the user has set win.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.name.split(".")[0] == "gavel" or not _of_a_library(record.pathname))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
    if sys.warnoptions:
        return
    show = warnings.showwarning

    def show_if_not_of_a_library(message: Any, category: Any, filename: str, *rest: Any) -> None:
        if not _of_a_library(filename):
            show(message, category, filename, *rest)

    warnings.showwarning = show_if_not_of_a_library


def _of_a_library(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path
