"""Waits: whoever reads a pipe hears what is waited for, with counts and the time left; a terminal has a live line."""

import io
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr

from rich.console import Console

from gavel.cli.terminal import WaitDisplay, heartbeat, waiting_for
from tests.limits import HANG_SECONDS


class Heard(io.StringIO):
    """A stream that lets a test wait for what is written."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def write(self, text: str) -> int:
        with self._written:
            self._written.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._written:
            assert self._written.wait_for(lambda: text in self.getvalue(), HANG_SECONDS), self.getvalue()


def test_a_command_that_prints_nothing_is_told_and_then_what_it_waits_for() -> None:
    stderr = Heard()
    with redirect_stderr(stderr), heartbeat("gavel train", quiet=0.01, first=0.01):
        stderr.wait_for("gavel train: starting")
        with waiting_for("loading a model"), waiting_for(lambda: "step 1/2: rollouts 3/16"):
            stderr.wait_for("step 1/2: rollouts 3/16\n")
        with waiting_for("loading a model"):
            stderr.wait_for("loading a model · 0 s")
        stderr.wait_for("gavel train: working")
    assert "write" not in vars(stderr)


def test_output_keeps_the_heartbeat_quiet_and_a_server_waits_in_silence() -> None:
    stderr = Heard()
    with redirect_stderr(stderr), heartbeat("gavel train", quiet=HANG_SECONDS, first=HANG_SECONDS):
        print("step 1/2", file=sys.stderr)
    with redirect_stderr(stderr), heartbeat("gavel serve", serves=True, quiet=0.01, first=0.01):
        print("listening", file=sys.stderr)
        with waiting_for("the last calls"):
            stderr.wait_for("the last calls")
    assert "working" not in stderr.getvalue()
    assert stderr.getvalue().startswith("step 1/2\n")


def told(work: Callable[[WaitDisplay], None]) -> str:
    text = io.StringIO()
    work(WaitDisplay(Console(file=text, width=80)))
    return text.getvalue()


def test_a_piped_wait_is_one_line_with_its_status() -> None:
    def work(display: WaitDisplay) -> None:
        with display.waiting("openai/x", 3, "episodes", lambda: "0.12 USD") as advance:
            for _ in range(3):
                advance()

    (line,) = told(work).splitlines()
    assert line.startswith("openai/x: 3/3 episodes in ")
    assert line.endswith(" · 0.12 USD")


def test_a_long_piped_wait_tells_how_much_is_left() -> None:
    stderr = Heard()

    def work(display: WaitDisplay) -> None:
        beating = heartbeat("gavel compare", quiet=0.01, first=0.01)
        with redirect_stderr(stderr), beating, display.waiting("[b]x", 2, "tasks") as advance:
            advance()
            stderr.wait_for("[b]x: 1/2 tasks · about ")

    told(work)


def test_a_terminal_shows_a_live_line() -> None:
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True)
    with WaitDisplay(console).waiting("x", 2, "tasks", lambda: "rate limited, 20 s") as advance:
        advance()
    assert "1/2 tasks" in text.getvalue()
    assert "rate limited, 20 s" in text.getvalue()
