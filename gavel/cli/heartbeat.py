"""What a command waits for, told on stderr whenever it has printed nothing for long, with or without a terminal.

    with waiting_for("loading Qwen/Qwen3-4B"):
        await model.register(backend)

A thread of the process looks several times a second. Where nothing was printed since the command began, it speaks after
a second; later, after `QUIET_SECONDS` without output: the innermost wait, and since when. Output is whatever is written
to sys.stdout or sys.stderr, so a live display or a line for each step keeps it quiet.
"""

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

QUIET_SECONDS = 6.0
FIRST_SECONDS = 1.0
_LOOK_SECONDS = 0.2

_waits: list[Callable[[], str]] = []
"""What is waited for, in words; the innermost last."""


@contextmanager
def waiting_for(what: str | Callable[[], str]) -> Generator[None]:
    """Around a wait. `what`: what for, which is told with the seconds so far; or the whole line, whenever it is told.

    A text is shown at once as a live line where stderr is a terminal.
    """
    began = time.monotonic()
    wait = what if callable(what) else lambda: f"{what} · {time.monotonic() - began:.0f} s"
    _waits.append(wait)
    try:
        if callable(what) or not sys.stderr.isatty():
            yield
        else:
            from rich.console import Console

            with Console(stderr=True).status(f"{what} …".replace("[", r"\[")):
                yield
    finally:
        _waits.remove(wait)


def waited_for() -> str:
    """The line that tells the innermost wait; empty where there is none."""
    return _waits[-1]() if _waits else ""


@contextmanager
def heartbeat(
    command: str, *, serves: bool = False, quiet: float = QUIET_SECONDS, first: float = FIRST_SECONDS
) -> Generator[None]:
    """Around a whole command. One that `serves` waits for others: once it has begun, only its `waiting_for` is told."""
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
            line = waited_for()
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
