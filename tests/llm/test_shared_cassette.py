"""Processes that share a cassette: one asks, the others wait, and a dead one is not waited for."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from gavel.base.processes import holder_name, is_dead
from gavel.llm import cassette_storage
from gavel.llm.cassette import Cassette
from gavel.llm.cassette_storage import SqliteStorage
from gavel.llm.errors import LlmError
from gavel.llm.types import Reply
from tests.limits import HANG_SECONDS
from tests.llm.questions import never, question, rows, said

pytestmark = pytest.mark.slow

ASKER = """
import asyncio, random, sys
from gavel.llm.cassette import Cassette
from gavel.llm.types import Reply
from tests.llm.questions import question

async def main(path, log, count):
    cassette, gate = Cassette(path), asyncio.Semaphore(16)

    async def one(number):
        async def ask():
            async with gate:
                with open(log, "a") as file:
                    file.write(f"{number}\\n")
                await asyncio.sleep(random.random() * .01)
                return Reply(f"reply {number}", 1, 1)
        reply = await cassette.answer(question(str(number)), ask)
        assert reply.text == f"reply {number}"

    numbers = list(range(int(count)))
    random.shuffle(numbers)
    await asyncio.gather(*map(one, numbers))

asyncio.run(main(*sys.argv[1:]))
"""

WRITER = """
import asyncio, itertools, sys
from gavel.llm.cassette import Cassette
from tests.llm.questions import question, said

async def main(path):
    cassette = Cassette(path)
    for number in itertools.count():
        await cassette.answer(question(str(number)), said)
        print(number, flush=True)

asyncio.run(main(sys.argv[1]))
"""

HOLDER = """
import asyncio, os, sys, time
from gavel.llm.cassette import Cassette
from tests.llm.questions import question

async def ask():
    print(os.getpid(), flush=True)
    time.sleep(600)

asyncio.run(Cassette(sys.argv[1]).answer(question(), ask))
"""

FORK = """
import asyncio, os, sys
from gavel.llm.cassette import Cassette
from tests.llm.questions import never, question, said

cassette = Cassette(sys.argv[1])

async def ask():
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1]])
    await asyncio.sleep(.5)
    return await said("the parent's")

asyncio.run(cassette.answer(question(), ask))
assert os.wait()[1] == 0
"""

CHILD = """
import asyncio, sys
from gavel.llm.cassette import Cassette
from tests.llm.questions import never, question
assert asyncio.run(Cassette(sys.argv[1]).answer(question(), never)).text == "the parent's"
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that end soon."""
    monkeypatch.setattr(cassette_storage, "_CLAIM", cassette_storage._CLAIM.replace("> 10.0", "> 1.0"))
    monkeypatch.setattr(cassette_storage, "_RENEWAL_SECONDS", 0.05)


def python(code: str, *arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], text=True, **options)


def test_processes_that_share_a_file_pay_once_for_each_question(tmp_path):
    path, log = tmp_path / "c.sqlite", tmp_path / "asked"
    askers = [python(ASKER, path, log, 300) for _ in range(3)]
    assert [each.wait(HANG_SECONDS) for each in askers] == [0, 0, 0]
    assert Counter(map(int, log.read_text().split())) == dict.fromkeys(range(300), 1)
    assert rows(path) == 300
    assert rows(path, "leases") == 0


def test_a_process_that_is_killed_while_it_asks_is_not_waited_for(tmp_path):
    holder = python(HOLDER, tmp_path / "c.sqlite", stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert rows(tmp_path / "c.sqlite", "leases") == 1
    holder.kill()
    holder.wait(HANG_SECONDS)
    cassette = Cassette(tmp_path / "c.sqlite")
    assert not asyncio.run(asyncio.wait_for(cassette.answer(question(), said), HANG_SECONDS)).cached
    cassette.close()
    assert rows(tmp_path / "c.sqlite", "leases") == 0


def test_a_process_that_is_stopped_is_not_waited_for_longer_than_its_lease_lasts(tmp_path, quick):
    holder = python(HOLDER, tmp_path / "c.sqlite", stdout=subprocess.PIPE)
    assert holder.stdout is not None
    os.kill(int(holder.stdout.readline()), signal.SIGSTOP)
    try:
        waiting = Cassette(tmp_path / "c.sqlite").answer(question(), said)
        assert not asyncio.run(asyncio.wait_for(waiting, HANG_SECONDS)).cached
    finally:
        holder.kill()
        holder.wait(HANG_SECONDS)


def foreign(path: Path, renewed_at: float) -> None:
    """The lease of a process on another machine, which shows no sign of life."""
    SqliteStorage(path).close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO leases VALUES (?, 'elsewhere 1 ff', ?)", (question().key, renewed_at))
    connection.commit()
    connection.close()


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
async def test_a_lease_that_nobody_renews_ends_whatever_the_clocks_say(tmp_path, quick, ahead):
    foreign(tmp_path / "c.sqlite", time.time() + ahead)
    reply = await asyncio.wait_for(Cassette(tmp_path / "c.sqlite").answer(question(), said), HANG_SECONDS)
    assert not reply.cached


def test_a_process_whose_event_loop_is_blocked_keeps_its_lease(tmp_path, quick):
    started = threading.Event()

    async def block() -> Reply:
        started.set()
        time.sleep(1.5)  # noqa: ASYNC251 - it blocks on purpose
        return await said("from the blocked loop")

    first = Cassette(tmp_path / "c.sqlite")
    thread = threading.Thread(target=lambda: asyncio.run(first.answer(question(), block)))
    thread.start()
    started.wait(HANG_SECONDS)
    reply = asyncio.run(Cassette(tmp_path / "c.sqlite").answer(question(), never))
    thread.join(HANG_SECONDS)
    assert (reply.text, reply.cached) == ("from the blocked loop", True)


def test_event_loops_that_share_a_cassette_pay_once(tmp_path):
    cassette, asked, started = Cassette(tmp_path / "c.sqlite"), list[int](), threading.Event()

    async def ask() -> Reply:
        asked.append(1)
        started.set()
        await asyncio.sleep(0.1)
        return await said()

    first = threading.Thread(target=lambda: asyncio.run(cassette.answer(question(), ask)))
    first.start()
    started.wait(HANG_SECONDS)
    assert asyncio.run(cassette.answer(question(), ask)).cached
    first.join(HANG_SECONDS)
    assert asked == [1]


async def test_a_failure_and_an_unusable_reply_release_the_question(tmp_path):
    one, two = Cassette(tmp_path / "c.sqlite"), Cassette(tmp_path / "c.sqlite")

    async def fail() -> Reply:
        raise LlmError("down")

    with pytest.raises(LlmError):
        await one.answer(question(), fail)
    await one.answer(question(), said, lambda _: False)
    assert not (await asyncio.wait_for(two.answer(question(), said), HANG_SECONDS)).cached


async def test_an_own_lease_whose_release_failed_is_not_waited_for(tmp_path):
    cassette = Cassette(tmp_path / "c.sqlite")
    thread = cassette._current_thread()
    thread.submit(lambda storage: storage.claim(question().key, thread.holder)).result()
    assert not (await asyncio.wait_for(cassette.answer(question(), said), HANG_SECONDS)).cached
    cassette.close()
    assert rows(tmp_path / "c.sqlite", "leases") == 0


async def test_who_is_cancelled_while_it_waits_or_asks_leaves_no_lease(tmp_path):
    cassettes = [Cassette(tmp_path / "c.sqlite") for _ in range(2)]
    asking = asyncio.Event()

    async def hang() -> Reply:
        asking.set()
        await asyncio.Event().wait()
        raise AssertionError

    first = asyncio.create_task(cassettes[0].answer(question(), hang))
    await asking.wait()
    second = asyncio.create_task(cassettes[1].answer(question(), hang))
    await asyncio.sleep(0.05)
    for each in (second, first):
        each.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    for each in cassettes:
        each.close()
    assert rows(tmp_path / "c.sqlite", "leases") == 0


async def test_a_lease_that_cannot_be_written_is_done_without(tmp_path, caplog):
    SqliteStorage(tmp_path / "c.sqlite").close()
    with sqlite3.connect(tmp_path / "c.sqlite") as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON leases BEGIN SELECT RAISE(FAIL, 'disk full'); END")
    assert (await Cassette(tmp_path / "c.sqlite").answer(question(), said)).text == "hi"
    assert "asked unclaimed" in caplog.text


def test_a_fork_waits_for_what_its_parent_asks(tmp_path):
    asker = python(FORK, tmp_path / "c.sqlite", CHILD)
    assert asker.wait(HANG_SECONDS) == 0


def test_a_holder_is_dead_when_its_process_is_gone_and_only_then():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    machine, _, rest = holder_name().rsplit(" ", 2)
    gone.wait(HANG_SECONDS)
    assert is_dead(f"{machine} {gone.pid} {rest}")
    assert not is_dead(holder_name())
    assert not is_dead(f"elsewhere {gone.pid} {rest}")
    assert holder_name() != holder_name()


async def test_what_was_told_before_a_kill_is_there_after_it(tmp_path):
    path = tmp_path / "c.sqlite"
    process = python(WRITER, path, stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = -1
    while told < 200:
        told = int(process.stdout.readline())
    process.kill()
    told = max([told, *(int(line) for line in process.stdout.read().splitlines() if line)])
    process.wait(HANG_SECONDS)
    cassette = Cassette(path)
    for number in range(told):  # the last line may have been cut short
        assert (await cassette.answer(question(str(number)), never)).cached
    assert (await cassette.answer(question("new"), said)).text == "hi"
