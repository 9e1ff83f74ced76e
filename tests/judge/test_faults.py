"""Many groups against a server with the habits of real vendors: no number comes from a fault, no order is lost
without a reason, and a call that sleeps holds no other up."""

import asyncio
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import Answer, Endpoint, Request, fails, says, scores
from tests.judge.groups import saying
from tests.vendors import PASSING, retry_after

GOOD = (0.75, 0.25)
FAULTS = [
    *PASSING.values(),
    *(retry_after(value) for value in ("0", "nan", "-1", "Thu, 01 Jan 1970 00:00:00 GMT")),
    retry_after("0", 503),
    says("Sorry, high demand"),
    says(None, refusal="I cannot judge this."),
    says(""),
    Answer(says("x").body | {"choices": []}),
    fails(400, "The response was filtered due to the prompt triggering the content management policy.")({}),
]
GARBAGE = [
    says(None),
    says('{"scores": [{"trajectory_id": "'),
    Answer("<html>busy</html>", headers={"Content-Type": "text/html"}),
]


class Vendor:
    """A server that fails a share of its requests, in all the ways that it knows."""

    def __init__(self, share: float, seed: int, faults: Sequence[Answer] = FAULTS) -> None:
        self._possible, self._share, self._dice, self._lock = faults, share, random.Random(seed), threading.Lock()
        self.faults = 0

    def __call__(self, request: Request) -> Answer:
        with self._lock:
            fault = self._dice.choice(self._possible) if self._dice.random() < self._share else None
            self.faults += fault is not None
        return fault or scores(*GOOD)(request)


def check(group: TrajectoryGroup, orders: int) -> tuple[int, int]:
    """Votes and lost orders of a group, after a look at each: every vote is one that was given."""
    whole = group.judgement
    for trajectory in group:
        votes = trajectory.judgement.votes
        assert all(vote.score == GOOD[vote.position] for vote in votes)
        assert (trajectory.reward is None) == (not votes)
        assert trajectory.judgement.score == trajectory.reward
        assert votes or trajectory.judgement.reason
    cast = {vote.order for trajectory in group for vote in (trajectory.judgement.votes if trajectory.judgement else ())}
    assert len(cast) + whole.lost_orders >= orders
    assert sum("is lost" in warning for warning in whole.warnings) >= whole.lost_orders
    return len(cast), whole.lost_orders


@pytest.mark.slow
async def test_two_hundred_groups_at_forty_percent_faults(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gavel.llm.failures.backoff", lambda longest: 0.0)
    vendor = Vendor(0.4, 3, [*FAULTS, *GARBAGE])
    endpoint.script = [vendor]
    judge = Judge(Juror("openai/judge", params=endpoint.params), orders=2, concurrency=64)
    judged = await asyncio.gather(*(judge.score(saying(f"a {n}", f"b {n}")) for n in range(200)))
    counts = [check(group, 2) for group in judged]
    votes, lost = (sum(column) for column in zip(*counts, strict=True))
    assert vendor.faults > 100
    assert votes > 0.9 * 400
    assert votes + lost >= 400
    assert judge.stopped is None
    assert judge.budget._in_flight == []


def test_threads_with_loops_of_their_own_share_a_judge(endpoint: Endpoint, tmp_path: Path):
    endpoint.script = [scores(0.75, 0.25)]
    judge = Judge(
        Juror("openai/judge", params=endpoint.params),
        prices={"openai/judge": (2.0, 8.0)},
        cassette=tmp_path / "c.sqlite",
        concurrency=4,
        config=JudgeConfig(requests_per_minute=6000, max_cost_usd=5),
    )

    async def score_all(thread: int) -> list[TrajectoryGroup]:
        return await asyncio.gather(*(judge.score(saying(f"thread {thread} {n}", "other")) for n in range(6)))

    with ThreadPoolExecutor(4) as threads:
        judged = [group for each in threads.map(lambda n: asyncio.run(score_all(n)), range(4)) for group in each]
    assert [group.judgement.status for group in judged if group.judgement] == ["scored"] * 24
    assert len(endpoint.requests) == 48
    assert judge.budget.spent_usd == pytest.approx(48 * (100 * 2 + 20 * 8) / 1e6)
