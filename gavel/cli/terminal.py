"""Terminal input and output of commands: lines, live waits, and tables of figures.

Gavel's own lines only; text from files and models is printed as plain characters.

    with waiting_for("loading Qwen/Qwen3-4B"):      a line on stderr whenever nothing was printed for long
        await model.register(backend)
"""

import io
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gavel.base.errors import GavelError
from gavel.base.text import duration

if TYPE_CHECKING:
    from gavel.judge.judge import Judge

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "LITELLM_LOG": "ERROR",
}

TRAINER = "loading torch and transformers"
"""The first wait of the commands that train or sample."""


def replace_unprintable() -> None:
    """Characters that the encoding of stdout or stderr lacks are printed as question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def plain(text: str, style: str = "") -> Text:
    """Text of judges, trajectories and files, with markup not interpreted and control characters replaced."""
    return Text("".join(character if character.isprintable() else " " for character in text), style)


def say(console: Console, line: str, style: str = "") -> None:
    """Prints one line, which the terminal may wrap."""
    console.print(plain(line, style), soft_wrap=True)


_GAP = 2


def print_table(
    console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()
) -> None:
    """Prints texts in columns under their headings. Texts that are too wide for a terminal are folded; those under the
    headings `right` are figures, which stay whole: where they do not fit, each is a line of its own."""

    def width(column: Iterable[Text]) -> int:
        return max((cell_len(line) for text in column for line in text.plain.split("\n")), default=0)

    heads, *lines = [list(map(plain, row)) for row in (headings, *rows)]
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console.width = 1000  # a file or another program takes any number of columns
    room, are_figures = console.width - _GAP * (len(heads) - 1), [head.plain in right for head in heads]
    shown = heads
    if sum(map(width, zip(heads, *lines, strict=True))) > room:
        stacked = [Text("\n".join(head.plain.split())) for head in heads]
        shown = [each if is_figure else head for head, each, is_figure in zip(heads, stacked, are_figures, strict=True)]
        name, *others = zip(shown, *lines, strict=True)
        needed = [width(column) if is_figure else 1 for column, is_figure in zip(others, are_figures[1:], strict=True)]
        if right and sum(needed) + min(width(name), console.width // 2) > room:
            if heads[0].plain:
                console.print(heads[0], style="bold", soft_wrap=True)
            for first, *cells in lines:
                console.print(first, soft_wrap=True)
                for heading, cell in zip(heads[1:], cells, strict=True):
                    console.print(Text.assemble("  ", heading, ": ", cell), soft_wrap=True)
            return
    table = Table(box=None, pad_edge=False)
    for at, (head, is_figure) in enumerate(zip(shown, are_figures, strict=True)):
        is_whole = is_figure or (not at and width(line[0] for line in lines) <= console.width // 2)
        table.add_column(head, justify="right" if is_figure else "left", overflow="fold", no_wrap=is_whole)
    for line in lines:
        table.add_row(*line)
    console.print(table)


@contextmanager
def show_line(console: Console, line: Callable[[], str]) -> Generator[None]:
    """Shows a line while the block runs, read anew whenever it is drawn: live in a terminal, else when it is quiet."""

    def shown() -> Text:
        return Text(plain(line()).plain, style="dim", no_wrap=True, overflow="ellipsis")

    with Live(get_renderable=shown, console=console, transient=True) if console.is_terminal else waiting_for(line):
        yield


def print_error(error: GavelError) -> None:
    """Prints a user's mistake and its remedy to stderr."""
    console = Console(stderr=True)
    console.print(Text.assemble(("error:", "bold red"), " ", error.message), soft_wrap=True)
    if error.remedy:
        console.print(Text(f"       {error.remedy}"), soft_wrap=True)


def print_warning(text: str) -> None:
    """Prints to stderr what does not stop a command."""
    say(Console(stderr=True), f"warning: {text}", "yellow")


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


QUIET_SECONDS = 6.0
FIRST_SECONDS = 1.0
_LOOK_SECONDS = 0.2

_waits: list[Callable[[], str]] = []
"""Descriptions of the current waits, the innermost last."""


@contextmanager
def waiting_for(what: str | Callable[[], str]) -> Generator[None]:
    """Shows a wait while the block runs. `what`: its reason, shown with the seconds so far; or a function of the line.

    A text is shown at once as a live line where stderr is a terminal.
    """
    began = time.monotonic()
    wait = what if callable(what) else lambda: f"{what} · {time.monotonic() - began:.0f} s"
    _waits.append(wait)
    try:
        if callable(what) or not sys.stderr.isatty():
            yield
        else:
            with Console(stderr=True).status(f"{what} …".replace("[", r"\[")):
                yield
    finally:
        _waits.remove(wait)


@contextmanager
def heartbeat(
    command: str, *, serves: bool = False, quiet: float = QUIET_SECONDS, first: float = FIRST_SECONDS
) -> Generator[None]:
    """Prints a line whenever a command was silent for long. One that `serves` waits for others: once it has begun, only
    its `waiting_for` is shown."""
    began = time.monotonic()
    written: list[float] = []

    def listen(stream: TextIO) -> None:
        write = stream.write

        def heard(text: str) -> int:
            written[:] = [time.monotonic()]
            return write(text)

        stream.write = heard

    def beat() -> None:
        while not ended.wait(min(_LOOK_SECONDS, quiet, first)):
            if time.monotonic() - (written[0] if written else began) < (quiet if written else first):
                continue
            line = _waits[-1]() if _waits else ""
            if not line and not (written and serves):
                line = f"{command}: {'working' if written else 'starting'} · {time.monotonic() - began:.0f} s"
            if line:
                print(line, file=sys.stderr, flush=True)

    ended = threading.Event()
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]  # None: closed by the caller
    for stream in streams:
        listen(stream)
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for stream in streams:
            del stream.write


class Work:
    """The current work and its progress."""

    def __init__(self, what: str = "starting", total: int = 0) -> None:
        Work.doing(self, what, total)  # not that of a display, which is not made yet

    def doing(self, what: str, total: int = 0) -> None:
        self.what, self.done, self.total, self._began = what, 0, total, time.monotonic()

    def advanced(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    @property
    def took(self) -> str:
        return duration(time.monotonic() - self._began)

    @property
    def left(self) -> str:
        """`about 12 s left`; empty before the first part, and after the last."""
        if not 0 < self.done < self.total:
            return ""
        return f"about {duration((time.monotonic() - self._began) / self.done * (self.total - self.done))} left"

    @property
    def words(self) -> str:
        """`evaluation on held-out tasks 37/512, about 12 s left`, or `learning, for 12 s`"""
        if not self.total:
            return f"{self.what}, for {self.took}"
        return f"{self.what} {self.done}/{self.total}{self.left and f', {self.left}'}"


@contextmanager
def show_progress(
    console: Console, what: str, total: int, unit: str, status: Callable[[], str] = lambda: ""
) -> Generator[Callable[[], None]]:
    """Shows the progress of work in `total` parts, each of which calls the yielded function; nothing for 0 parts.

    `status` is read whenever it is shown.
    """
    if total <= 0:
        yield lambda: None
        return
    work = Work(what, total)

    rest = Work(what)
    """The parts behind the first one, with which many come at once, after what all waited for."""

    def advance() -> None:
        work.advanced(work.done + 1, total)
        if work.done == 1:
            rest.doing(what, total - 1)
        rest.done = work.done - 1

    def told(time: str) -> str:
        return " · ".join(filter(None, (f"{what}: {work.done}/{total} {unit}{time}", status())))

    with show_line(console, lambda: told(f" · {rest.left or f'for {work.took}'}")):
        yield advance
    say(console, told(f" in {work.took}"))


def status_of(judge: "Judge") -> Callable[[], str]:
    """The text shown while waiting for the judge; empty for one that asks no server."""
    return lambda: judge.status if judge.asks_servers else ""
