"""Held-out attempts are scored each by itself, and what was not scored is told."""

import json
from typing import Any

import pytest

from gavel.cli.heldout_scores import judge_alone, mean_score
from gavel.judge.judge import Judge
from gavel.llm.budget import Budget
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Endpoint, labels_in

ATTEMPTS = [
    Trajectory(messages_and_choices=[{"role": "user", "content": str(n)}, {"role": "assistant", "content": "x"}])
    for n in range(6)
]


async def half(messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
    (label,) = labels_in({"messages": messages})
    return json.dumps({"scores": [{"trajectory_id": label, "explanation": "", "score": 0.5}]})


async def test_every_attempt_is_scored_by_itself() -> None:
    judgements = await judge_alone(Judge(half, orders=1, alone="scored"), ATTEMPTS)
    assert [judgement.score for judgement in judgements] == [0.5] * 6
    assert mean_score(judgements) == ("0.500 ± 0.000", "")


async def test_a_judge_that_stops_leaves_the_rest_without_a_score(endpoint: Endpoint) -> None:
    from gavel.judge.panel.juror import Juror

    juror = Juror("openai/judge", params=endpoint.params)
    judge = Judge(juror, orders=1, alone="scored", budget=Budget(max_tokens=10))
    judgements = await judge_alone(judge, ATTEMPTS)
    assert [judgement.score for judgement in judgements] == [None] * 6
    score, missing = mean_score(judgements)
    assert score == "–"
    assert missing.startswith("6 unscored: ")
    assert "budget" in missing


@pytest.mark.parametrize(
    ("scores", "mean"),
    [([0.2, 0.4, None], "0.300 ± 0.196"), ([0.2], "0.200"), ([], "–"), ([None], "–")],
)
def test_the_mean_is_that_of_the_scored(scores: list[float | None], mean: str) -> None:
    judgements = [Judgement(score=score, reason=None if score is not None else "it is away") for score in scores]
    found, missing = mean_score(judgements)
    assert found == mean
    assert missing == ("1 unscored: it is away" if None in scores else "")
