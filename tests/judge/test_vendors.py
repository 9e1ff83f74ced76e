"""Many groups against a server with the habits of real vendors: no number comes from a fault, no order is lost
without a reason, and a call that sleeps holds no other up."""

import asyncio
import random
import threading

import pytest

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm.budget import Budget
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import Answer, Endpoint, Request, fails, labels_in, says, scores
from tests.judge.groups import saying
from tests.limits import HANG_SECONDS
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


class Vendor:
    """A server that fails a share of its requests, in all the ways that it knows."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._dice, self._lock = share, random.Random(seed), threading.Lock()
        self.faults = 0
        self.good: dict[tuple[str, ...], int] = {}

    def __call__(self, request: Request) -> Answer:
        with self._lock:
            fault = self._dice.choice(FAULTS) if self._dice.random() < self._share else None
            self.faults += fault is not None
            if fault is not None:
                return fault
            key = tuple(labels_in(request))
            self.good[key] = self.good.get(key, 0) + 1
        return scores(*GOOD)(request)


def check(group: TrajectoryGroup, orders: int) -> tuple[int, int]:
    """Votes and lost orders of a group, after a look at each: every vote is one that was given."""
    whole = group.judgement
    assert whole is not None
    for trajectory in group:
        assert trajectory.judgement is not None
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
    vendor = Vendor(0.4, 3)
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


@pytest.mark.slow
@pytest.mark.parametrize("model", ["openai/o3", "openai/gpt-5-mini"])
async def test_a_small_budget_keeps_its_calls_in_flight_by_a_cap_that_is_sent(endpoint: Endpoint, model: str):
    together = threading.Barrier(32, timeout=HANG_SECONDS)

    def all_at_once(request: Request) -> Answer:
        together.wait()
        return scores(*GOOD)(request)

    endpoint.script = [all_at_once]
    budget = Budget(max_cost_usd=5 if model.endswith("o3") else 1.2)
    judge = Judge(Juror(model, params=endpoint.params), orders=1, concurrency=32, budget=budget)
    judged = await asyncio.gather(*(judge.score(saying(f"a {n}", f"b {n}")) for n in range(32)))
    assert {group.judgement.status for group in judged if group.judgement} == {"scored"}
    assert all(8192 <= request["max_completion_tokens"] < 100_000 for request in endpoint.requests)
