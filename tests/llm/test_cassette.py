import asyncio
import sqlite3
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from gavel.llm.cassette import Cassette
from gavel.llm.cassette_storage import Entry, Question, StorageThread, StoredReply
from gavel.llm.errors import CassetteError, CassetteMissError, LlmError
from gavel.llm.types import Reply
from tests.limits import HANG_SECONDS
from tests.llm.questions import MESSAGES, never, question, rows, said

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


def can_be_used(reply: Reply) -> bool:
    return reply.text.startswith("good")


async def test_a_reply_that_cannot_be_used_is_returned_and_not_kept(tmp_path):
    cassette = Cassette(tmp_path / "c.sqlite")
    assert (await cassette.answer(question(), lambda: said("Sorry, high demand"), can_be_used)).text.startswith("Sorry")
    assert rows(tmp_path / "c.sqlite") == 0
    assert (await cassette.answer(question(), lambda: said("good"), can_be_used)).text == "good"
    assert (await cassette.answer(question(), never, can_be_used)).text == "good"


async def test_a_stored_reply_that_can_no_longer_be_used_is_asked_for_again_and_stays_replaced(tmp_path):
    await Cassette(tmp_path / "c.sqlite").answer(question(), lambda: said("Sorry, high demand"))
    cassette = Cassette(tmp_path / "c.sqlite")
    assert (await cassette.answer(question(), lambda: said("good"), can_be_used)).text == "good"
    assert (await Cassette(tmp_path / "c.sqlite").answer(question(), never, can_be_used)).text == "good"
    assert (await Cassette(tmp_path / "c.sqlite", "replay").answer(question(), never, can_be_used)).text == "good"


async def test_a_repaired_conversation_replays_as_it_went(tmp_path):
    questions, texts = [question(text) for text in ("first", "second", "third")], ["bad", "worse", "good"]

    async def converse(cassette: Cassette, ask) -> list[Reply]:
        earlier: list[tuple[Question, Reply]] = []
        for each, text in zip(questions, texts, strict=True):
            reply = await cassette.answer(each, lambda text=text: ask(text), can_be_used, list(earlier))
            earlier.append((each, reply))
        return [reply for _, reply in earlier]

    async def nobody(text: str) -> Reply:
        return await never()

    await converse(Cassette(tmp_path / "c.sqlite"), said)
    for mode in ("cache", "replay"):
        again = await converse(Cassette(tmp_path / "c.sqlite", mode), nobody)
        assert [reply.text for reply in again] == texts
        assert all(reply.cached for reply in again)


async def test_a_repair_that_failed_leaves_nothing_behind(tmp_path):
    cassette = Cassette(tmp_path / "c.sqlite")
    bad = await cassette.answer(question("first"), lambda: said("bad"), can_be_used)
    await cassette.answer(question("second"), lambda: said("worse"), can_be_used, [(question("first"), bad)])
    assert rows(tmp_path / "c.sqlite") == 0


async def test_who_waits_shares_a_reply_that_cannot_be_used(tmp_path):
    cassette, asked = Cassette(tmp_path / "c.sqlite"), 0

    async def ask() -> Reply:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return await said("bad")

    replies = await asyncio.gather(*(cassette.answer(question(), ask, can_be_used) for _ in range(5)))
    assert asked == 1
    assert [reply.cached for reply in replies] == [False] + [True] * 4


async def test_a_cassette_counts_what_it_replays(tmp_path):
    await Cassette(tmp_path / "c.sqlite").answer(question(), said)
    cassette = Cassette(tmp_path / "c.sqlite")
    for text in ("Hello", "Hello", "Bye"):
        await cassette.answer(question(text), said)
    assert (cassette.replayed, cassette.misses) == (2, 1)


class Shelf:
    """A storage in memory, of which no more is asked than the protocol says."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.leases: dict[str, str] = {}

    def replies(self, key: str) -> list[StoredReply]:
        found = [entry for entry in self.entries if entry.question.key == key]
        return [StoredReply(replace(entry.reply, cached=True), entry.repaired_by) for entry in found]

    def keep(self, entries: Sequence[Entry]) -> None:
        self.entries += entries

    def similar(self, question: Question) -> list[Mapping[str, str]]:
        return [entry.question.parts for entry in self.entries]

    def claim(self, key: str, holder: str, dead: str = "") -> str | None:
        other = self.leases.setdefault(key, holder)
        return None if other == holder else other

    def renew(self, keys: Collection[str], holder: str) -> None: ...

    def release(self, key: str, holder: str) -> None:
        del self.leases[key]

    def close(self) -> None: ...


async def test_another_storage_serves_as_well_as_a_file():
    shelf = Shelf()
    cassette = Cassette(StorageThread(lambda: shelf))
    assert not (await cassette.answer(question(), said)).cached
    assert (await cassette.answer(question(), never)).cached
    cassette.close()
    assert (await Cassette(StorageThread(lambda: shelf), "replay").answer(question(), never)).text == "hi"
    with pytest.raises(CassetteMissError, match="the cassette has no reply"):
        await Cassette(StorageThread(lambda: shelf), "replay").answer(question("Bye"), never)
    assert shelf.leases == {}


def test_checking_a_new_cassette_makes_no_file(tmp_path):
    Cassette(tmp_path / "deep" / "c.sqlite").check()
    assert list(tmp_path.iterdir()) == []


async def test_an_asker_that_gives_up_while_it_claims_leaves_no_claim():
    shelf, may_look = Shelf(), threading.Event()
    plain = shelf.replies
    shelf.replies = lambda key: plain(key) if may_look.wait(HANG_SECONDS) else []
    cassette = Cassette(StorageThread(lambda: shelf))
    asking = asyncio.create_task(cassette.answer(question(), never))
    await asyncio.sleep(0.05)
    asking.cancel()
    may_look.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    cassette.close()
    assert shelf.leases == {}


async def test_a_reply_that_is_kept_releases_its_claim_before_it_is_used():
    shelf = Shelf()
    cassette = Cassette(StorageThread(lambda: shelf))
    await cassette.answer(question(), said)
    assert shelf.leases == {}
    cassette.close()
