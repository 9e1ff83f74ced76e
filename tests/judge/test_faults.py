"""Many groups against an endpoint that often fails: no number comes from a failure."""

import asyncio
import random
import threading

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from tests.endpoint import Answer, Endpoint, Request, fails, labels_in, limit_attempts, says, scores
from tests.judge.groups import saying
from tests.limits import HANG_SECONDS

GOOD = (0.75, 0.25)


def _garbage(kind: int, request: Request) -> Answer:
    labels = labels_in(request)
    bodies: list[Answer] = [
        says(""),
        says(None),
        says("I am sorry, I cannot judge this."),
        says('{"scores": [{"trajectory_id": "' + labels[0]),
        says(f'{{"{labels[0]}": 0.9}}'),
        says(f'{{"{labels[0]}": 7, "{labels[1]}": 0.9}}'),
        Answer({"choices": []}),
        Answer("<html>busy</html>", headers={"Content-Type": "text/html"}),
    ]
    return bodies[kind % len(bodies)]


class _Fickle:
    """Three of ten requests fail: 429, 500, a timeout (the first by silence), or garbage."""

    def __init__(self, endpoint: Endpoint, seed: int, share: float = 0.3) -> None:
        self._dice, self._lock, self._share = random.Random(seed), threading.Lock(), share
        self._timeout = endpoint.silence
        self.faults = 0

    def __call__(self, request: Request) -> Answer:
        with self._lock:
            faulty, kind, garbage = self._dice.random() < self._share, self._dice.randrange(4), self._dice.randrange(8)
            self.faults += faulty
        if not faulty:
            return scores(*GOOD)(request)
        match kind:
            case 0:
                return fails(429)(request)
            case 1:
                return fails(500)(request)
            case 2:
                timeout, self._timeout = self._timeout, fails(408)
                return timeout(request)
            case _:
                return _garbage(garbage, request)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "groups"), [(0.3, 120), (0.9, 40), pytest.param(0.3, 500, marks=pytest.mark.thorough)]
)
async def test_every_group_is_right_or_unscored_with_its_reason(endpoint: Endpoint, monkeypatch, share, groups):
    limit_attempts(monkeypatch, 6)
    fickle = _Fickle(endpoint, 7, share)
    endpoint.script = [fickle]
    juror = Juror("openai/judge", params=endpoint.params)
    judge = Judge(juror, orders=1, concurrency=8, config=JudgeConfig(content_retries=1, timeout=5.0))
    asked = [saying(f"a {number}", f"b {number}") for number in range(groups)]
    judged = await asyncio.gather(*(judge.score(group) for group in asked))
    assert fickle.faults > 0.2 * groups
    unscored = 0
    for group in judged:
        assert group.judgement is not None
        if group.judgement.status == "scored":
            for trajectory in group:
                assert trajectory.judgement is not None
                [vote] = trajectory.judgement.votes
                assert trajectory.reward == vote.score == GOOD[vote.position]
        else:
            unscored += 1
            assert group.judgement.status == "unscored"
            assert [trajectory.reward for trajectory in group] == [None, None]
            assert group.judgement.reason
            assert all(t.judgement and t.judgement.reason for t in group)
    assert unscored < 0.1 * groups if share < 0.5 else unscored > 0


async def test_a_judge_that_never_answers_ends_at_the_deadline(endpoint: Endpoint):
    endpoint.script = [endpoint.silence]
    judge = Judge(Juror("openai/judge", params=endpoint.params), orders=1, config=JudgeConfig(deadline=0.5))
    judged = await asyncio.wait_for(judge.score(saying("a", "b")), HANG_SECONDS)
    assert judged.judgement is not None
    assert judged.judgement.status == "unscored"
    assert "no complete reply within 0.5 s" in (judged.judgement.reason or "")
