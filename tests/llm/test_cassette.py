"""Replies on file: kept, replayed, refused, and shared by tasks, threads and processes."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gavel.llm.cassette import FORMAT_VERSION, Cassette, Question
from gavel.llm.errors import CassetteError
from gavel.llm.types import Reply
from tests.limits import HANG_SECONDS


def question(text: str = "Hello", model: str = "openai/m", **params) -> Question:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return Question(model, params, {"type": "object"}, messages)


def rows(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM replies").fetchone()[0]


@asynccontextmanager
async def never(text: str = "") -> AsyncIterator[Reply]:
    raise AssertionError("asked")
    yield Reply("")


@asynccontextmanager
async def said(text: str = "hi") -> AsyncIterator[Reply]:
    yield Reply(text, 100, 20, 0.5, "stop", "m-2026")


ODD = 'line\n"quote" \x00 \ud800 ¦ 判断'


async def test_a_reply_comes_back_byte_for_byte_with_what_it_cost(tmp_path):
    first = await Cassette(tmp_path / "deep" / "c.sqlite").answer(question(), lambda: said(ODD))
    again = await Cassette(tmp_path / "deep" / "c.sqlite").answer(question(), never)
    offline = await Cassette(tmp_path / "deep" / "c.sqlite", "replay").answer(question(), never)
    key = question().key
    assert first == Reply(ODD, 100, 20, 0.5, "stop", "m-2026", cached=False, key=key)
    assert again == offline == Reply(ODD, 100, 20, 0.5, "stop", "m-2026", cached=True, key=key)


async def test_a_reply_that_cannot_be_kept_is_used_all_the_same_and_that_is_told(tmp_path, caplog):
    cassette = Cassette(tmp_path / "c.sqlite")
    await cassette.answer(question("first"), said)
    with sqlite3.connect(tmp_path / "c.sqlite") as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON replies BEGIN SELECT RAISE(FAIL, 'disk full'); END")
    assert (await cassette.answer(question("second"), said)).text == "hi"
    assert "not kept" in caplog.text
    assert "disk full" in caplog.text
    assert rows(tmp_path / "c.sqlite") == 1


async def test_who_asks_is_no_part_of_the_question_and_is_not_written_down(tmp_path):
    secrets = {"api_key": "sk-1", "aws_secret_access_key": "sk-2", "extra_headers": {"Authorization": "sk-3"}}
    assert question(**secrets).key == question().key
    assert question(max_tokens=5).key != question().key
    cassette = Cassette(tmp_path / "c.sqlite")
    await cassette.answer(question(**secrets), said)
    cassette.close()
    assert b"sk-" not in (tmp_path / "c.sqlite").read_bytes()


async def test_a_miss_names_the_model_and_asks_nothing(tmp_path):
    path = tmp_path / "c.sqlite"
    await Cassette(path).answer(question("Hello there", temperature=0.5), said)
    for other in (question("Hello world", temperature=0.5), question("Hello there", temperature=0.7)):
        with pytest.raises(CassetteError, match="openai/m"):
            await Cassette(path, "replay").answer(other, never)
    assert rows(path) == 1


async def test_the_same_question_at_the_same_time_is_asked_once(tmp_path):
    cassette, asked = Cassette(tmp_path / "c.sqlite"), []

    @asynccontextmanager
    async def ask():
        asked.append(1)
        await asyncio.sleep(0.01)
        yield Reply("hi")

    replies = await asyncio.gather(*(cassette.answer(question(), ask) for _ in range(50)))
    assert asked == [1]
    assert [reply.cached for reply in replies] == [False] + [True] * 49


async def test_who_is_cancelled_takes_nobody_along(tmp_path):
    cassette, asking = Cassette(tmp_path / "c.sqlite"), asyncio.Event()

    @asynccontextmanager
    async def hang():
        asking.set()
        await asyncio.Event().wait()
        yield Reply("")

    first = asyncio.create_task(cassette.answer(question(), hang))
    await asking.wait()
    second = asyncio.create_task(cassette.answer(question(), said))
    await asyncio.sleep(0)
    first.cancel()
    assert (await asyncio.wait_for(second, HANG_SECONDS)).text == "hi"


async def test_a_reply_that_was_paid_for_is_kept_though_its_asker_is_cancelled(tmp_path):
    cassette, paid = Cassette(tmp_path / "c.sqlite"), asyncio.Event()

    @asynccontextmanager
    async def pay():
        paid.set()
        yield Reply("hi")

    await cassette.answer(question("warm"), said)
    asker = asyncio.create_task(cassette.answer(question(), pay))
    await paid.wait()
    asker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker
    assert (await cassette.answer(question(), never)).text == "hi"


async def test_a_repaired_conversation_replays_as_it_went(tmp_path):
    questions, texts = [question(text) for text in ("first", "second", "third")], ["bad", "worse", "good"]

    async def converse(cassette: Cassette, ask) -> list[Reply]:
        earlier: list[tuple[Question, Reply]] = []
        for each, text in zip(questions, texts, strict=True):
            reply = await cassette.answer(each, lambda text=text: ask(text), lambda r: r.text == "good", list(earlier))
            earlier.append((each, reply))
        return [reply for _, reply in earlier]

    await converse(Cassette(tmp_path / "c.sqlite"), said)
    for mode in ("cache", "replay"):
        again = await converse(Cassette(tmp_path / "c.sqlite", mode), never)
        assert [reply.text for reply in again] == texts
        assert all(reply.cached for reply in again)


@pytest.mark.parametrize("mode", ["cache", "replay"])
@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
async def test_a_file_of_another_format_is_refused_with_a_remedy_and_left_as_it_is(tmp_path, mode, version):
    path = tmp_path / "c.sqlite"
    cassette = Cassette(path)
    await cassette.answer(question(), said)
    cassette.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(CassetteError, match=f"format version {version}") as error:
        await Cassette(path, mode).answer(question(), never)
    assert error.value.remedy
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", ["cache", "replay"])
@pytest.mark.parametrize("content", [b"no database" * 100, b"no"])
async def test_a_place_that_is_no_cassette_is_refused_with_the_remedy_and_left_as_it_is(tmp_path, content, mode):
    file = tmp_path / "c.sqlite"
    file.write_bytes(content)
    for path in (file, tmp_path, file / "c.sqlite") if mode == "cache" else (file,):
        cassette = Cassette(path, mode)
        told = "cannot be used: it is" if path == file else "cannot be used"
        for _ in range(2):
            with pytest.raises(CassetteError, match=told) as error:
                cassette.check()
            assert error.value.remedy == "Name another file for the cassette."
        with pytest.raises(CassetteError, match="cannot be used"):
            await cassette.answer(question(), said)
    assert file.read_bytes() == content


WRITER = """
import asyncio, itertools, sys
from gavel.llm.cassette import Cassette
from tests.llm.test_cassette import question, said

async def main(path):
    cassette = Cassette(path)
    for number in itertools.count():
        await cassette.answer(question(str(number)), said)
        print(number, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
async def test_what_was_told_before_a_kill_is_there_after_it(tmp_path):
    path = tmp_path / "c.sqlite"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], text=True, stdout=subprocess.PIPE)  # noqa: ASYNC220
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
