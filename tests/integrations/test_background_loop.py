"""The loop that judges are asked on."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gavel.integrations._rewards import run, submitted
from tests.limits import HANG_SECONDS

ROOT = Path(__file__).parents[3]


async def where() -> tuple[asyncio.AbstractEventLoop, str]:
    return asyncio.get_running_loop(), threading.current_thread().name


async def test_it_is_the_same_for_threads_and_for_other_loops():
    here = await submitted(where())
    assert here == await asyncio.to_thread(run, where())
    assert here[0] is not asyncio.get_running_loop()


async def test_cancelling_the_caller_cancels_the_work():
    started, ended = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(submitted(work()))
    assert await asyncio.to_thread(started.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 30)


def test_what_it_raises_is_raised():
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(fail())


def test_what_still_runs_when_the_process_ends_is_cancelled_and_not_torn_down(tmp_path: Path):
    (tmp_path / "program.py").write_text(
        "import asyncio\n"
        "from gavel.integrations._rewards import run\n"
        "async def work():\n"
        "    try:\n"
        "        await asyncio.Event().wait()\n"
        "    finally:\n"
        "        print('cancelled')\n"
        "async def start():\n"
        "    global task\n"
        "    task = asyncio.create_task(work())\n"
        "    await asyncio.sleep(0)\n"
        "run(start())\n"
    )
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cancelled\n", "")
