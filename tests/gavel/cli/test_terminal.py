"""What a command shows, at any width, with and without a terminal, and what Ctrl-C does."""

import io
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from rich.console import Console

from gavel.cli.terminal import heartbeat, print_table, show_progress, waiting_for
from gavel.cli.training import LiveReport, RunDisplay
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.evaluation import EVALUATING, Evaluation
from gavel.trainer.loop.train_loop import StepReport
from tests.gavel.reports.made import made_run
from tests.limits import HANG_SECONDS, wait_until

TREE = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "narrow"),
    [
        (["doctor"], {"PYTHONIOENCODING": "ascii"}),
        (["train", "no_scenario–"], {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
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


def report(step: int, *members: Trajectory) -> StepReport:
    result = TrainResult(step=step, trained=True, metrics={"judge_score": 0.5})
    return StepReport(result, [TrajectoryGroup(members)], rollout=2.0, judge=1.0, train=3.0, whole=60.0)


def printed(steps: int = 4, every: int = 2, judge: Judge | None = None, *, success: bool = True) -> list[str]:
    """The lines of a whole run on a console that is no terminal."""
    text = io.StringIO()
    display = RunDisplay(Console(file=text, width=80), steps, judge=judge)
    with display.shown():
        for step in range(steps + 1):
            if step % every == 0:
                display.doing(EVALUATING)
                display.advanced(1, 4)
                metrics = {"success": step / steps} if success else {}
                display.evaluated(step, Evaluation(4, [Trajectory(metrics=metrics)]))
            if step < steps:
                display.doing("rollouts and judging")
                display.doing("learning")
                display.stepped(report(step + 1))
    return text.getvalue().splitlines()


def test_every_step_has_one_line_of_at_most_80_characters() -> None:
    for lines in (printed(every=9), printed(success=False), printed(judge=Judge("openai/gpt-5-mini"))):
        assert [line.split()[1] for line in lines] == ["0/4", "1/4", "2/4", "3/4", "4/4"]
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in "".join(lines)
    middle = lines[2]  # of the run whose judge has a price
    assert all(part in middle for part in ("held-out success 0.00 → 0.50", "score 0.50", "2 min left", "USD")), middle
    assert "left" not in lines[-1]


def test_rollouts_that_failed_are_told_at_the_end() -> None:
    text = io.StringIO()
    display = RunDisplay(Console(file=text, width=80), 1)
    with display.shown():
        display.stepped(report(1, Trajectory(), Trajectory(status="failed", status_reason="database is down")))
    assert text.getvalue().splitlines()[-1] == "1 of 2 rollouts failed; the first: database is down"


class Heard(io.StringIO):
    """A stream that lets a test wait for what is written."""

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.getvalue())


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


def test_output_keeps_the_heartbeat_quiet_and_a_server_waits_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gavel.cli.terminal._LOOK_SECONDS", 0.01)
    stderr = Heard()
    with redirect_stderr(stderr), heartbeat("gavel train", quiet=HANG_SECONDS, first=HANG_SECONDS):
        print("step 1/2", file=sys.stderr)
        time.sleep(0.1)
    with redirect_stderr(stderr), heartbeat("gavel serve", serves=True, quiet=0.01, first=0.01):
        print("listening", file=sys.stderr)
        with waiting_for("the last calls"):
            stderr.wait_for("the last calls")
    assert "working" not in stderr.getvalue()
    assert stderr.getvalue().startswith("step 1/2\n")


def test_a_piped_wait_is_one_line_with_its_status_and_tells_what_is_left() -> None:
    text, stderr = io.StringIO(), Heard()
    console = Console(file=text, width=80)
    beating = heartbeat("gavel compare", quiet=0.01, first=0.01)
    with redirect_stderr(stderr), beating, show_progress(console, "[b]x", 3, "tasks", lambda: "0.12 USD") as advance:
        advance()
        stderr.wait_for("[b]x: 1/3 tasks · for ")
        time.sleep(0.5)
        advance()
        stderr.wait_for("[b]x: 2/3 tasks · about ")
        advance()
    (line,) = text.getvalue().splitlines()
    assert line.startswith("[b]x: 3/3 tasks in ")
    assert line.endswith(" · 0.12 USD")


@pytest.mark.parametrize("width", [200, 80, 40, 1])
def test_every_figure_is_whole_on_a_line(width: int) -> None:
    headings = ("", "held-out success", "steps to 0.80", "reward's gap to success", "cost, USD", "time")
    rows = [
        ("judge (openai/gpt-5-mini)", "0.91 ± 0.02", "14 (3 of 5 seeds)", "+0.31", "not known", "1 h 12 min"),
        ("hand", "0.90 ± 0.01", "9", "–", "–", "58 min"),
    ]
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True, color_system=None)
    print_table(console, headings, rows, right=headings[1:])
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    for figure in (figure for row in rows for figure in row[1:]):
        assert any(figure in line for line in lines), (figure, lines)
    assert "…" not in "".join(lines)
    assert (len(lines) == 3) == (width == 200)  # a line for each row
    if width >= 40:
        assert max(map(len, lines)) <= width


COMMAND = """
import asyncio, sys, time
import typer
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end, stop_at_next_interrupt

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


def interrupted(times: int, *, thread: float, ending: float, gap: float = 0.0) -> tuple[int, str, str]:
    """Status and output of a command, after `times` Ctrl-C, whose step takes `thread` and then `ending` seconds."""
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
            for _ in range(30):  # while one is being obeyed
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
def test_a_second_stops_at_once_without_a_traceback(gap: float) -> None:
    started = time.monotonic()
    status, _, err = interrupted(2, thread=HANG_SECONDS, ending=HANG_SECONDS, gap=gap)
    assert status == 130
    assert "Traceback" not in err
    assert err.count("Stopped") == 1
    assert time.monotonic() - started < HANG_SECONDS


def test_a_page_is_not_written_again_at_once_and_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = made_run(tmp_path / "run")
    live = LiveReport(run)
    live.write_if_due()
    (run / "report.html").unlink()
    live.write_if_due()
    assert not (run / "report.html").exists()
    assert live.write() == run / "report.html"
    with caplog.at_level(logging.WARNING):
        assert LiveReport(tmp_path).write() is None  # it is no run
    assert "was not written" in caplog.text
