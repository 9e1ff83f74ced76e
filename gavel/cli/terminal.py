"""What is printed: Gavel's own lines only, and text from files and models as plain characters."""

import logging
import os
import sys
import warnings

from rich.console import Console
from rich.text import Text

from gavel.errors import GavelError


def plain(text: str, style: str = "") -> Text:
    """Text of judges, trajectories and files, with markup not interpreted and control characters replaced."""
    return Text("".join(character if character.isprintable() else " " for character in text), style)


def print_error(error: GavelError) -> None:
    """Prints a user's mistake and its remedy to stderr."""
    console = Console(stderr=True)
    console.print(Text.assemble(("error:", "bold red"), " ", error.message), soft_wrap=True)
    if error.remedy:
        console.print(Text(f"       {error.remedy}"), soft_wrap=True)


def silence_libraries() -> None:
    """Keeps warnings, logs and progress bars of libraries out of the terminal; Gavel's own log stays.

    Call it before the libraries are imported. `python -W …` and variables that the user has set win.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("LITELLM_LOG", "ERROR")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.name.split(".")[0] == "gavel")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
