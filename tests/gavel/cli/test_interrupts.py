"""Ctrl-C, once and twice, while a command trains, and while it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

TREE = Path(__file__).parents[3]
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


def test_one_lets_the_step_end_and_says_how_to_go_on() -> None:
    status, out, err = interrupted(1, thread=0.5, ending=0.1)
    assert (status, out) == (130, "ended\n")
    assert err == "Stopped. Finished steps are saved; the same command goes on from there.\n"


@pytest.mark.parametrize("gap", [0.0, 0.3], ids=["at once", "later"])
@pytest.mark.parametrize("times", [2, 3])
def test_a_second_stops_at_once_without_a_traceback(times: int, gap: float) -> None:
    started = time.monotonic()
    status, _, err = interrupted(times, thread=HANG_SECONDS, ending=HANG_SECONDS, gap=gap)
    assert status == 130
    assert "Traceback" not in err
    assert err.count("Stopped") == 1
    assert time.monotonic() - started < HANG_SECONDS


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


@pytest.mark.parametrize("moment", ["new_event_loop", "run_until_complete"])
def test_one_before_the_work_has_begun_is_told_as_any_other(moment: str) -> None:
    """Before there is a loop, and once there is one that has not come to the work."""
    command = [sys.executable, "-c", EARLY, moment]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(TREE)}, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.endswith("Stopped. Finished steps are saved; the same command goes on from there.\n")
