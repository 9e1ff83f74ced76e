import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.llm.cassette import FORMAT_VERSION, Cassette, Question
from gavel.llm.errors import CassetteError, CassetteMissError, LlmError
from gavel.llm.types import Reply
from tests.limits import HANG_SECONDS

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
ODD = 'line\n"quote" \x00 \ud800 ¦ 判断'


def question(text: str = "Hello", model: str = "openai/m", **params) -> Question:
    return Question(model, params, {"type": "object"}, [MESSAGES[0], {"role": "user", "content": text}])


def rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    count = connection.execute("SELECT count(*) FROM replies").fetchone()[0]
    connection.close()
    return count


async def never() -> Reply:
    raise AssertionError("asked")


async def said(text: str = "hi") -> Reply:
    return Reply(text, 100, 20, 0.5, "stop", "m-2026")


async def test_a_reply_comes_back_byte_for_byte_with_what_it_cost(tmp_path):
    first = await Cassette(tmp_path / "deep" / "c.sqlite").answer(question(), lambda: said(ODD))
    again = await Cassette(tmp_path / "deep" / "c.sqlite").answer(question(), never)
    offline = await Cassette(tmp_path / "deep" / "c.sqlite", "replay").answer(question(), never)
    assert first == Reply(ODD, 100, 20, 0.5, "stop", "m-2026", cached=False)
    assert again == offline == Reply(ODD, 100, 20, 0.5, "stop", "m-2026", cached=True)


async def test_a_reply_that_cannot_be_kept_is_used_all_the_same_and_that_is_told(tmp_path, caplog):
    cassette = Cassette(tmp_path / "c.sqlite")
    await cassette.answer(question("first"), said)
    with sqlite3.connect(tmp_path / "c.sqlite") as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON replies BEGIN SELECT RAISE(FAIL, 'disk full'); END")
    assert await cassette.answer(question("second"), said) == await said()
    assert "not kept" in caplog.text
    assert "disk full" in caplog.text
    assert rows(tmp_path / "c.sqlite") == 1


async def test_another_model_parameter_schema_or_message_is_another_question(tmp_path):
    cassette = Cassette(tmp_path / "c.sqlite")
    asked = [question(), question("Bye"), question(model="openai/n"), question(temperature=0.5)]
    asked.append(Question("openai/m", {}, {"type": "array"}, MESSAGES))
    for number, each in enumerate(asked):
        await cassette.answer(each, lambda number=number: said(str(number)))
    assert [(await cassette.answer(each, never)).text for each in asked] == ["0", "1", "2", "3", "4"]


async def test_who_asks_is_no_part_of_the_question_and_is_not_written_down(tmp_path):
    secrets = {"api_key": "sk-1", "aws_secret_access_key": "sk-2", "extra_headers": {"Authorization": "sk-3"}}
    assert question(**secrets).key == question().key
    assert question(max_tokens=5).key != question().key
    cassette = Cassette(tmp_path / "c.sqlite")
    await cassette.answer(question(**secrets), said)
    cassette.close()
    assert b"sk-" not in (tmp_path / "c.sqlite").read_bytes()


async def test_a_miss_names_what_differs(tmp_path):
    path = tmp_path / "c.sqlite"
    await Cassette(path).answer(question("Hello there", temperature=0.5), said)
    replay = Cassette(path, "replay")
    with pytest.raises(CassetteMissError, match=r"differ the messages .*Hello there.*Hello world"):
        await replay.answer(question("Hello world", temperature=0.5), never)
    with pytest.raises(CassetteMissError, match=r"differ the params .*0\.5.*0\.7") as error:
        await replay.answer(question("Hello there", temperature=0.7), never)
    assert "messages" not in error.value.message
    with pytest.raises(CassetteMissError, match=r"differ the model .*openai/m.*openai/n"):
        await replay.answer(question("Hello there", "openai/n", temperature=0.5), never)
    assert rows(path) == 1


async def test_a_replay_needs_a_cassette(tmp_path):
    with pytest.raises(CassetteError, match="no cassette to replay"):
        await Cassette(tmp_path / "c.sqlite", "replay").answer(question(), never)
    assert not (tmp_path / "c.sqlite").exists()


@pytest.mark.parametrize("mode", ["cache", "replay"])
@pytest.mark.parametrize("content", [b"no database" * 100, b"no"])
async def test_a_file_that_is_no_cassette_is_refused_with_the_remedy_and_left_as_it_is(tmp_path, content, mode):
    path = tmp_path / "c.sqlite"
    path.write_bytes(content)
    cassette = Cassette(path, mode)
    for _ in range(2):
        with pytest.raises(CassetteError, match="cannot be used: it is not a cassette") as error:
            cassette.check()
        assert error.value.remedy == "Name another file for the cassette."
    with pytest.raises(CassetteError, match="cannot be used"):
        await cassette.answer(question(), said)
    assert path.read_bytes() == content


def test_a_directory_and_a_path_below_a_file_are_refused_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("text")
    for path in (tmp_path, tmp_path / "file" / "c.sqlite"):
        with pytest.raises(CassetteError, match="cannot be used") as error:
            Cassette(path).check()
        assert error.value.remedy == "Name another file for the cassette."


def foreign(path: Path, number: int, journal: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("CREATE TABLE replies (id INTEGER, author TEXT)")
    connection.execute(f"PRAGMA user_version = {number}")
    return connection


@pytest.mark.parametrize("mode", ["cache", "replay"])
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
@pytest.mark.parametrize("number", [0, FORMAT_VERSION])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path, number, journal, mode):
    path = tmp_path / "c.sqlite"
    foreign(path, number, journal).close()
    before = path.read_bytes()
    with pytest.raises(CassetteError, match="it is not a cassette") as error:
        Cassette(path, mode).check()
    assert "Name another file" in error.value.remedy
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_database_that_another_program_was_killed_with_keeps_its_write_ahead_log(tmp_path):
    path, copy = tmp_path / "open.sqlite", tmp_path / "c.sqlite"
    with_log = foreign(path, 0, "WAL")
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    with_log.close()
    before = [Path(f"{copy}{end}").read_bytes() for end in ("", "-wal")]
    with pytest.raises(CassetteError, match="it is not a cassette"):
        Cassette(copy).check()
    assert [Path(f"{copy}{end}").read_bytes() for end in ("", "-wal")] == before


async def test_an_empty_file_becomes_a_cassette(tmp_path):
    path = tmp_path / "c.sqlite"
    path.touch()
    Cassette(path).check()
    assert version(path) == FORMAT_VERSION
    assert rows(path) == 0


async def test_a_file_is_checked_once_and_again_after_it_was_closed(tmp_path):
    path = await recorded(tmp_path / "c.sqlite")
    cassette = Cassette(path)
    cassette.check()
    set_version(path, FORMAT_VERSION + 1)
    cassette.check()
    cassette.close()
    with pytest.raises(CassetteError, match="format version 2"):
        cassette.check()


async def test_a_parameter_that_cannot_be_written_down_is_told(tmp_path):
    with pytest.raises(CassetteError, match="cannot be stored"):
        await Cassette(tmp_path / "c.sqlite").answer(question(odd=object()), said)


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(CassetteError, match='not "append"'):
        Cassette("c.sqlite", "append")  # type: ignore[arg-type]


async def test_the_same_question_at_the_same_time_is_asked_once(tmp_path):
    cassette, asked = Cassette(tmp_path / "c.sqlite"), 0

    async def ask() -> Reply:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return await said()

    replies = await asyncio.gather(*(cassette.answer(question(), ask) for _ in range(50)))
    assert asked == 1
    assert [reply.cached for reply in replies] == [False] + [True] * 49


async def test_a_failure_is_shared_by_those_who_wait_and_not_kept(tmp_path):
    cassette, asked = Cassette(tmp_path / "c.sqlite"), 0

    async def fail() -> Reply:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        raise LlmError("down")

    errors = await asyncio.gather(*(cassette.answer(question(), fail) for _ in range(5)), return_exceptions=True)
    assert [str(error) for error in errors] == ["down"] * 5
    assert asked == 1
    assert (await cassette.answer(question(), said)).text == "hi"


async def test_who_is_cancelled_takes_nobody_along(tmp_path):
    cassette, asking = Cassette(tmp_path / "c.sqlite"), asyncio.Event()

    async def hang() -> Reply:
        asking.set()
        await asyncio.Event().wait()
        raise AssertionError

    first = asyncio.create_task(cassette.answer(question(), hang))
    await asking.wait()
    second = asyncio.create_task(cassette.answer(question(), said))
    await asyncio.sleep(0)
    first.cancel()
    assert (await asyncio.wait_for(second, HANG_SECONDS)).text == "hi"


async def test_a_reply_that_was_paid_for_is_kept_though_its_asker_is_cancelled(tmp_path):
    cassette, paid = Cassette(tmp_path / "c.sqlite"), asyncio.Event()

    async def pay() -> Reply:
        paid.set()
        return await said()

    await cassette.answer(question("warm"), said)
    asker = asyncio.create_task(cassette.answer(question(), pay))
    await paid.wait()
    asker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker
    assert (await cassette.answer(question(), never)).text == "hi"


async def test_two_cassettes_on_one_file_agree_on_the_answer_and_lose_no_reply(tmp_path):
    one, two = Cassette(tmp_path / "c.sqlite"), Cassette(tmp_path / "c.sqlite")
    both = asyncio.Barrier(2)

    async def ask(text: str) -> Reply:
        await both.wait()
        return await said(text)

    replies = await asyncio.gather(
        one.answer(question(), lambda: ask("one")), two.answer(question(), lambda: ask("two"))
    )
    assert replies[0].text == replies[1].text
    assert not any(reply.cached for reply in replies)
    assert rows(tmp_path / "c.sqlite") == 2


WRITER = """
import asyncio, sys
from gavel.llm.cassette import Cassette
from gavel.llm.types import Reply
from tests.llm.test_cassette import question

async def main(path, name):
    cassette = Cassette(path)
    number = 0
    while number < 300 or name == "for ever":
        async def ask(): return Reply(f"{name} {number}", 1, 1)
        await asyncio.gather(
            cassette.answer(question(f"{name} {number}"), ask), cassette.answer(question(f"both {number}"), ask))
        print(number, flush=True)
        number += 1

asyncio.run(main(*sys.argv[1:]))
"""


def writer(path: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
async def test_processes_write_to_one_file_at_once_and_nothing_is_lost(tmp_path):
    path = tmp_path / "c.sqlite"
    writers = [writer(path, name) for name in ("one", "two")]
    for each in writers:
        each.communicate(timeout=HANG_SECONDS)
    assert [each.returncode for each in writers] == [0, 0]
    replay = Cassette(path, "replay")
    for name in ("one", "two"):
        for number in range(300):
            assert (await replay.answer(question(f"{name} {number}"), never)).text == f"{name} {number}"


async def test_what_was_told_before_a_kill_is_there_after_it(tmp_path):
    path = tmp_path / "c.sqlite"
    process = writer(path, "for ever")
    assert process.stdout is not None
    told = -1
    while told < 200:
        told = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    told = max([told, *(int(line) for line in process.stdout.read().splitlines() if line)])
    process.wait(timeout=HANG_SECONDS)
    cassette = Cassette(path)
    for number in range(told):  # the last line may have been cut short
        assert (await cassette.answer(question(f"for ever {number}"), never)).cached
    assert (await cassette.answer(question("new"), said)).text == "hi"


def test_a_fork_opens_the_file_anew(tmp_path):
    code = """
import asyncio, os, sys
from gavel.llm.cassette import Cassette
from tests.llm.test_cassette import question, said, never
cassette = Cassette(sys.argv[1])
asyncio.run(cassette.answer(question("parent"), said))
child = os.fork()
asyncio.run(cassette.answer(question("parent"), never))
asyncio.run(cassette.answer(question(f"child {child == 0}"), said))
if child == 0: os._exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(cassette.answer(question("child True"), never))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c.sqlite")], check=True, timeout=HANG_SECONDS)


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


def set_version(path: Path, number: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.close()


async def recorded(path: Path) -> Path:
    cassette = Cassette(path)
    await cassette.answer(question(), said)
    cassette.close()
    return path


async def test_a_new_file_has_the_current_format_version(tmp_path):
    assert version(await recorded(tmp_path / "c.sqlite")) == FORMAT_VERSION == 1


async def test_a_file_from_before_versions_is_replayed_as_it_is_and_gets_a_version_when_it_is_written(tmp_path):
    path = await recorded(tmp_path / "c.sqlite")
    set_version(path, 0)
    assert (await Cassette(path, "replay").answer(question(), never)).text == "hi"
    assert version(path) == 0
    cassette = Cassette(path)
    assert (await cassette.answer(question(), never)).text == "hi"
    cassette.close()
    assert version(path) == FORMAT_VERSION
    assert rows(path) == 1


@pytest.mark.parametrize("mode", ["cache", "replay"])
async def test_a_file_of_a_newer_format_is_refused_with_the_remedy_and_left_as_it_is(tmp_path, mode):
    path = await recorded(tmp_path / "c.sqlite")
    set_version(path, FORMAT_VERSION + 1)
    before = path.read_bytes()
    with pytest.raises(CassetteError, match="has format version 2, and this Gavel reads up to 1") as error:
        await Cassette(path, mode).answer(question(), never)
    assert "Install the version of Gavel that wrote it" in error.value.remedy
    assert path.read_bytes() == before
