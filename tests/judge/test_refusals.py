"""Judge models on loopback that refuse some text: the member is unscored, and the others are scored."""

from collections import Counter
from typing import Any

import pytest

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import Answer, Endpoint, Request, fails, labels_in, says, scores
from tests.judge.groups import saying

pytestmark = pytest.mark.slow

FORBIDDEN = "FORBIDDEN"


def _filtered(request: Request) -> Answer:
    answer = says("")
    answer.body["choices"][0]["finish_reason"] = "content_filter"
    return answer


REFUSALS: dict[str, Any] = {
    "finish reason content_filter": _filtered,
    "400 of a content policy": fails(400, "Your request was rejected as a result of our safety system."),
    "400 of a content filter": fails(400, "The prompt triggered the content management policy."),
    "403 of a moderation": fails(403, 'requires moderation and your input was flagged for "violence"'),
    "refusal field": lambda request: says(None, refusal="I can't assist with that."),
    "plain words": lambda request: says("I’m sorry, I can’t help with that."),
}


def refusing(refusal: Any, *, least: int = 1):
    """Answers well unless the prompt holds the forbidden word at least `least` times."""

    def step(request: Request) -> Answer:
        if request["messages"][1]["content"].count(FORBIDDEN) >= least:
            return refusal(request)
        return scores(*(0.1 + 0.1 * n for n in range(len(labels_in(request)))))(request)

    return step


def judge(endpoint: Endpoint, **options: Any) -> Judge:
    return Judge(Juror("openai/judge", params=endpoint.params), **options)


def group(size: int, *refused: int) -> TrajectoryGroup:
    return saying(*(f"attempt {n} {FORBIDDEN if n in refused else ''}" for n in range(size)))


@pytest.mark.parametrize("kind", REFUSALS)
async def test_only_the_member_whose_text_is_refused_is_unscored(endpoint: Endpoint, kind: str):
    endpoint.script = [refusing(REFUSALS[kind])]
    judged = await judge(endpoint).score(group(8, 3))
    assert [n for n, trajectory in enumerate(judged) if trajectory.reward is None] == [3]
    assert judged.judgement.status == "partial"
    assert judged.judgement.lost_orders == 0
    refused = judged.trajectories[3].judgement
    assert (refused.reason or "").startswith("the judge model refuses its text: ")
    others = [t.judgement for n, t in enumerate(judged) if n != 3]
    assert all(judgement and len(judgement.votes) == 2 for judgement in others)
    # The two orders stay mirror images of each other, so that positions still cancel.
    assert all(judgement and sum(vote.position for vote in judgement.votes) == 6 for judgement in others)
    tries = 3 if kind == "plain words" else 1
    assert len(endpoint.requests) <= tries * (2 + 4) + 2 + 3
    assert judged.judgement.calls == len(endpoint.requests)


@pytest.mark.parametrize("size", [2, 3, 8, 20])
async def test_a_model_that_refuses_everything_scores_nobody_and_is_asked_a_few_times(endpoint: Endpoint, size: int):
    endpoint.script = [REFUSALS["finish reason content_filter"]]
    judged = await judge(endpoint).score(group(size))
    assert judged.judgement.status == "unscored"
    assert "refuses" in (judged.judgement.reason or "")
    assert all(trajectory.reward is None for trajectory in judged)
    assert len(endpoint.requests) <= 8 + 8


async def test_texts_that_are_refused_only_together_leave_the_group_unscored(endpoint: Endpoint):
    endpoint.script = [refusing(REFUSALS["400 of a content policy"], least=2)]
    judged = await judge(endpoint).score(group(8, 2, 6))
    assert judged.judgement.status == "unscored"
    assert "refuses these texts together, but none alone" in (judged.judgement.reason or "")
    assert len(endpoint.requests) <= 10


async def test_a_member_that_is_refused_does_not_cut_the_others_of_its_pairs(endpoint: Endpoint):
    endpoint.script = [refusing(REFUSALS["400 of a content policy"])]
    judged = await judge(endpoint, mode="pairwise").score(group(5, 2))
    assert [n for n, trajectory in enumerate(judged) if trajectory.reward is None] == [2]
    reasons = Counter(t.judgement.reason for t in judged if t.judgement and t.judgement.reason)
    assert [reason.startswith("the judge model refuses its text") for reason in reasons] == [True]
