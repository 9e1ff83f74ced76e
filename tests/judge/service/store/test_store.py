"""What the database holds: judgements against a model of them, groups that wait for members, keys, and ids."""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from gavel.judge.service.errors import Problem
from gavel.judge.service.schemas import MemberRequest, NewMember, PageQuery, Record, Verdict
from gavel.judge.service.store import leases
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.group_store import DeadlineClock, GroupStore
from gavel.judge.service.store.judgement_store import Store, new_id
from gavel.judge.service.store.tables import judgements
from gavel.scenarios.judgement import GroupJudgement, Judgement


def new() -> Record:
    return Record(new_id(), "", "", "queued", "a judge", 2, 1.0)


def verdict(score: float, calls: int = 2) -> Verdict:
    members = [Judgement(score=score, explanation="because"), Judgement(reason="no vote: lost")]
    whole = GroupJudgement(status="partial", calls=calls, prompt_tokens=7, completion_tokens=3, cost_usd=0.5)
    return Verdict(ids=["0", "1"], members=members, group=whole)


class Judgements(RuleBasedStateMachine):
    """What a dict says must be in the database, after any sequence of steps, restarts included."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.open()
        self.expected: dict[str, tuple[bytes, float | None, str | None]] = {}
        """Payload, score and lease owner by id."""
        self.keys: dict[str, tuple[str, bytes]] = {}

    def open(self) -> None:
        self.store = Store(Database.open(str(self.folder / "service.sqlite")))

    def teardown(self) -> None:
        self.store.database.close()
        shutil.rmtree(self.folder)

    @rule(target=ids, payload=st.binary(max_size=30), owner=st.sampled_from([None, "a", "b"]))
    def accept(self, payload: bytes, owner: str | None) -> str:
        accepted, is_new = asyncio.run(self.store.accept(new(), payload, owner))
        assert is_new
        self.expected[accepted.id] = payload, None, owner
        return accepted.id

    @rule(target=ids, payload=st.sampled_from([b"1", b"2"]), key=st.sampled_from(["x", "y"]))
    def accept_with_a_key(self, payload: bytes, key: str):
        known = self.keys.get(key)
        if known is not None and known[0] in self.expected and known[1] != payload:
            with pytest.raises(Problem, match="another request"):
                asyncio.run(self.store.accept(new(), payload, idempotency_key=key))
            return multiple()
        accepted, is_new = asyncio.run(self.store.accept(new(), payload, idempotency_key=key))
        assert is_new == (known is None or known[0] not in self.expected)
        if is_new:
            self.keys[key] = accepted.id, payload
            self.expected[accepted.id] = payload, None, None
        assert accepted.id == self.keys[key][0]
        return accepted.id

    @rule(owner=st.sampled_from(["a", "b"]), limit=st.integers(1, 3))
    def take(self, owner: str, limit: int) -> None:
        works = self.store.database.write_now(lambda c: leases.take(c, owner, limit, []))
        free = [key for key, (_, score, lessee) in sorted(self.expected.items()) if score is None and lessee is None]
        assert [record.id for record, *_ in works] == free[:limit]
        for record, sent, _ in works:
            payload = self.expected[record.id][0]
            assert sent == payload
            self.expected[record.id] = payload, None, owner

    @rule(owner=st.sampled_from(["a", "b"]))
    def give_back(self, owner: str) -> None:
        self.store.database.write_now(lambda c: leases.end(c, [owner]))
        for key, (payload, score, lessee) in self.expected.items():
            if lessee == owner and score is None:
                self.expected[key] = payload, None, None

    @rule(judgement=ids, score=st.floats(0, 1))
    def finish(self, judgement: str, score: float) -> None:
        record = Record(judgement, "", "", "running", "a judge", 2, 1.0)
        finished = asyncio.run(self.store.finish(record, verdict(score)))
        if judgement not in self.expected:
            assert finished is None
            return
        payload, first, _ = self.expected[judgement]
        self.expected[judgement] = payload, score if first is None else first, None
        assert finished is not None
        assert finished.verdict is not None
        assert finished.verdict.members[0].score == self.expected[judgement][1]

    @rule(judgement=consumes(ids))
    def delete(self, judgement: str) -> None:
        assert asyncio.run(self.store.delete(judgement)) == (judgement in self.expected)
        self.expected.pop(judgement, None)

    @rule()
    def restart(self) -> None:
        self.store.database.close()
        self.open()

    @invariant()
    def the_database_says_the_same(self) -> None:
        records, _ = asyncio.run(self.store.page(PageQuery(limit=200), None))
        assert [record.id for record in records] == sorted(self.expected, reverse=True)
        details = asyncio.run(self.store.get_all(list(self.expected)))
        for key, (payload, score, _) in self.expected.items():
            (stored,) = asyncio.run(self.store.database.rows(sa.select(judgements.c.payload).filter_by(id=key)))
            assert stored.payload == payload
            found = details[key].verdict
            assert (found and found.members[0].score) == score
            assert details[key].is_finished == (score is not None)


TestJudgements = Judgements.TestCase
TestJudgements.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)


def test_ids_ascend_also_when_the_clock_is_set_back_and_are_uuids_of_version_7(monkeypatch: pytest.MonkeyPatch):
    ids = [new_id() for _ in range(10_000)]
    monkeypatch.setattr("time.time_ns", lambda: 1)
    ids += [new_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert {(UUID(one).version, UUID(one).variant) for one in ids} == {(7, "specified in RFC 4122")}


class Clock(DeadlineClock):
    """Of another boot of the machine, which a test sets."""

    def __init__(self, boot: str) -> None:
        self.id, self.seconds = boot, 100.0

    def now(self) -> float:
        return self.seconds


@pytest.mark.parametrize("step", [-1e7, 1e7])
async def test_a_step_of_the_system_s_clock_neither_closes_a_group_nor_keeps_it_open(
    step: float, database: Database, monkeypatch: pytest.MonkeyPatch
):
    before, after = Clock("one"), Clock("another")
    asked = MemberRequest(expected=2, id="m", messages=[{"role": "user", "content": "a"}])
    member = NewMember(asked, "group", "", "a judge", b'{"messages":[]}', b"{}", 60.0, 1000)
    group = await GroupStore(database, before).join(member)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step)
    assert await GroupStore(database, before).close_due() == []
    before.seconds += 20
    await GroupStore(database, before).keep_time()
    restarted = GroupStore(database, after)  # the machine was started again: no process of the first boot is left
    await restarted.keep_time()
    after.seconds += 39
    assert await restarted.close_due() == []
    after.seconds += 2
    assert await restarted.close_due() == [group.record.id]
