"""What a command shows, at any width, with and without a terminal, and what Ctrl-C does."""

import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from rich.console import Console

from gavel.cli.terminal import WaitDisplay, heartbeat, print_figures, replace_unprintable, waited_for, waiting_for
from gavel.cli.training import LiveReport, RunDisplay
from gavel.judge.judge import Judge
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.evaluation import EVALUATING, Evaluation
from gavel.trainer.loop.train_loop import StepReport
from tests.gavel.reports.made_runs import made_run
from tests.limits import HANG_SECONDS

TREE = Path(__file__).parents[3]
NARROW = ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


@pytest.mark.parametrize(
    ("text", "printed"),
    [("torch ✓", "torch yes"), ("gpu –", "gpu -"), ("a → b", "a -> b"), ("±0.03", "+/-0.03"), ("Zoë", "Zo\\xeb")],
)
def test_characters_that_an_encoding_lacks_are_printed_as_others(text: str, printed: str) -> None:
    replace_unprintable()
    assert text.encode("ascii", "gavel.printable").decode() == printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "narrow"),
    [
        (["doctor"], NARROW[0]),
        (["doctor"], NARROW[1]),
        (["scenarios"], NARROW[1]),
        (["train", "--help"], NARROW[0]),
        (["train", "no_scenario–"], NARROW[1]),
    ],
)
def test_every_command_can_print_where_there_is_only_ascii(command: list[str], narrow: dict[str, str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(TREE)} | narrow
    done = subprocess.run(
        [sys.executable, "-m", "gavel", *command], capture_output=True, env=environment, timeout=HANG_SECONDS
    )
    assert done.returncode == ("no_scenario–" in command), done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_a_configuration_is_printed_as_utf_8_whatever_the_terminal_is(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(TREE), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "gavel", "config", "--name", "Zoë–1"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=HANG_SECONDS)
    assert 'name = "Zoë–1"' in done.stdout.decode("utf-8"), done.stderr


def report(step: int, score: float = 0.5) -> StepReport:
    result = TrainResult(step=step, trained=True, metrics={"judge_score": score})
    return StepReport(result, [], rollout=2.0, judge=1.0, train=3.0, whole=60.0)


def printed(steps: int = 4, every: int = 2, judge: Judge | None = None, *, success: bool = True) -> list[str]:
    """The lines of a whole run on a console that is no terminal."""
    text = io.StringIO()
    display = RunDisplay(Console(file=text, width=80), steps, judge=judge)
    with display.shown():
        for step in range(steps + 1):
            if step % every == 0:
                display.doing(EVALUATING)
                display.advanced(1, 4)
                measures = {"success": step / steps} if success else {}
                display.evaluated(step, Evaluation(4, measures, []))
            if step < steps:
                display.doing("rollouts and judging")
                display.doing("learning")
                display.stepped(report(step + 1))
    return text.getvalue().splitlines()


def test_every_step_has_one_line_of_at_most_80_characters() -> None:
    for lines in (printed(), printed(every=9), printed(success=False), printed(judge=Judge("openai/gpt-5-mini"))):
        assert [line.split()[1] for line in lines] == ["0/4", "1/4", "2/4", "3/4", "4/4"]
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in "".join(lines)


def test_a_line_has_success_score_time_left_and_cost() -> None:
    line = printed(judge=Judge("openai/gpt-5-mini"))[2]
    assert "held-out success 0.00 → 0.50" in line
    assert "score 0.50" in line
    assert "2 min left" in line
    assert "USD" in line
    assert "left" not in printed()[-1]


def test_a_long_wait_without_a_terminal_has_a_word() -> None:
    assert not any(EVALUATING in line for line in printed())
    display = RunDisplay(Console(file=io.StringIO(), width=80), 4)
    with display.shown():
        display.doing(EVALUATING)
        display.advanced(1, 4)
        assert waited_for().startswith(f"step 0/4: {EVALUATING} 1/4, about ")
        display.doing("learning")
        assert waited_for().startswith("step 0/4: learning, for ")
    assert waited_for() == ""


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


HEADINGS = ("", "held-out success", "steps to 0.80", "reward's gap to success", "cost, USD", "time")
ROWS = [
    ("judge (openai/gpt-5-mini)", "0.91 ± 0.02", "14 (3 of 5 seeds)", "+0.31", "not known", "1 h 12 min"),
    ("hand", "0.90 ± 0.01", "9", "–", "–", "58 min"),
]


def printed_figures(width: int) -> list[str]:
    text = io.StringIO()
    print_figures(Console(file=text, width=width), HEADINGS, ROWS)
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 120, 100, 80, 70, 60, 50, 40, 20, 1])
def test_every_figure_is_whole_on_a_line(width: int) -> None:
    lines = printed_figures(width)
    for row in ROWS:
        for figure in row[1:]:
            assert any(figure in line for line in lines), (figure, lines)
    assert "…" not in "".join(lines)
    if width >= 40:
        assert max(map(len, lines)) <= width


def test_a_wide_terminal_has_a_line_for_each_row_and_a_narrow_one_for_each_figure() -> None:
    assert len(printed_figures(200)) == 3
    assert printed_figures(200)[2].split()[0] == "hand"
    assert 3 < len(printed_figures(80)) < 10
    narrow = printed_figures(40)
    assert narrow[0] == "judge (openai/gpt-5-mini)"
    assert narrow[1] == "  held-out success: 0.91 ± 0.02"
    assert len(narrow) == 12


COMMAND = """
import asyncio, sys, time
import typer
from gavel.cli.terminal import RESUME, run_interruptibly, run_to_end, stop_at_next_interrupt

async def step():
    print("begun", flush=True)
    try:
        await asyncio.shield(asyncio.to_thread(time.sleep, float(sys.argv[1])))
    finally:
        await asyncio.sleep(float(sys.argv[2]))
        print("ended", flush=True)

async def probe():
    return 1

def main():
    assert run_interruptibly(probe()) == 1
    run_to_end(step(), RESUME)

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)
try:
    app([])
finally:
    stop_at_next_interrupt()
"""


BURST = 30
"""Ctrl-C that arrive while one is being obeyed."""


def interrupted(times: int, *, thread: float, ending: float, gap: float = 0.0) -> tuple[int, str, str]:
    """How a command ends whose step takes `thread` seconds and then `ending`, after so many Ctrl-C."""
    command = [sys.executable, "-c", COMMAND, str(thread), str(ending)]
    environment = os.environ | {"PYTHONPATH": str(TREE)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(gap)
        while times > 1 and process.poll() is None:  # signals that come before the first is seen count as one
            for _ in range(BURST):
                process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        out, err = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, out, err


@pytest.mark.slow
def test_one_lets_the_step_end_and_says_how_to_go_on() -> None:
    status, out, err = interrupted(1, thread=0.5, ending=0.1)
    assert (status, out) == (130, "ended\n")
    assert err == "Stopped. Finished steps are saved; the same command goes on from there.\n"


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.0, 0.3], ids=["at once", "later"])
@pytest.mark.parametrize("times", [2, 3])
def test_a_second_stops_at_once_without_a_traceback(times: int, gap: float) -> None:
    started = time.monotonic()
    status, _, err = interrupted(times, thread=HANG_SECONDS, ending=HANG_SECONDS, gap=gap)
    assert status == 130
    assert "Traceback" not in err
    assert err.count("Stopped") == 1
    assert time.monotonic() - started < HANG_SECONDS


@pytest.mark.slow
def test_a_second_while_threads_end_prints_no_traceback() -> None:
    status, _, err = interrupted(2, thread=HANG_SECONDS, ending=0.0, gap=0.5)
    assert status == 130
    assert "Traceback" not in err


EARLY = """
import asyncio, os, signal, sys
import typer
from gavel.cli.terminal import RESUME, run_to_end

def interrupted(*given, **named):
    setattr(place, sys.argv[1], before)
    signal.raise_signal(signal.SIGINT)
    return before(*given, **named)

place = asyncio.events if sys.argv[1] == "new_event_loop" else asyncio.BaseEventLoop
before = getattr(place, sys.argv[1])
setattr(place, sys.argv[1], interrupted)

async def step():
    print("begun", flush=True)

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(lambda: run_to_end(step(), RESUME))
app([])
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["new_event_loop", "run_until_complete"])
def test_one_before_the_work_has_begun_is_told_as_any_other(moment: str) -> None:
    """Before there is a loop, and once there is one that has not come to the work."""
    command = [sys.executable, "-c", EARLY, moment]
    ended = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.endswith("Stopped. Finished steps are saved; the same command goes on from there.\n")


def test_a_page_is_not_written_again_at_once(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    live = LiveReport(run)
    live.write_if_due()
    (run / "report.html").unlink()
    live.write_if_due()
    assert not (run / "report.html").exists()
    assert live.write() == run / "report.html"


def test_a_page_that_cannot_be_written_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert LiveReport(tmp_path).write() is None
    assert "was not written" in caplog.text
