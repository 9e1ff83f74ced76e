import json
import re

import pytest

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.reply.verdict import VerdictError, read_scores
from gavel.judge.rubric import Criterion, Rubric
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import says
from tests.judge.groups import desk, saying

RUBRIC = Rubric(
    "Be kind.",
    [
        Criterion("looks", "- calls get_order and get_policy before refund, exchange or deny", 2),
        Criterion("tells", "- ends with a message to the customer"),
        Criterion("calm", "Stays calm.", 0),
    ],
)
LABELS = ("K7QX", "W3RT")
MARKS = {"K7QXa": 1.0, "W3RTa": 0.0, "K7QXb": 0.4, "W3RTb": 0.5, "K7QXc": 0.0, "W3RTc": 1.0}


def entries(scores):
    return json.dumps({"scores": [{"trajectory_id": i, "explanation": "why", "score": s} for i, s in scores.items()]})


def test_a_vote_is_the_weighted_mean_of_the_criteria():
    verdict = read_scores(entries(MARKS), RUBRIC, LABELS)
    assert {label: scored.score for label, scored in verdict.scores.items()} == pytest.approx(
        {"K7QX": (2 * 1.0 + 0.4) / 3, "W3RT": 0.5 / 3}
    )
    assert verdict.scores["K7QX"].criteria == {"looks": 1.0, "tells": 0.4, "calm": 0.0}
    assert verdict.scores["K7QX"].explanation == "looks 1: why · tells 0.4: why · calm 0: why"


def test_a_member_that_is_declined_by_one_criterion_has_no_score():
    verdict = read_scores(entries(MARKS | {"W3RTb": None}), RUBRIC, LABELS)
    assert list(verdict.scores) == ["K7QX"]
    assert list(verdict.unread) == ["W3RT"]


@pytest.mark.parametrize(
    "scores",
    [
        {name: score for name, score in MARKS.items() if name != "W3RTb"},
        {**MARKS, "W3RTb": 5},
        {"K7QX": 1.0, "W3RT": 0.5},
        dict.fromkeys(["K7QX a", "W3RT a"], 0.5),
    ],
)
def test_a_score_that_is_missing_for_one_criterion_is_never_guessed(scores):
    with pytest.raises(VerdictError):
        read_scores(entries(scores), RUBRIC, LABELS)


def by_id(messages, schema) -> str:
    """Scores each id: a tenth for each letter of the member's message, half of that for criterion b."""
    prompt = messages[1]["content"]
    said = dict(re.findall(r"trajectory (\w+)\n¦\w+ assistant: (\w*)", prompt))
    ids = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
    return json.dumps({name: len(said[name[:-1]]) / (20 if name.endswith("b") else 10) for name in ids})


async def test_members_are_scored_by_criterion_and_the_means_are_recorded():
    async def judge(messages, schema):
        return by_id(messages, schema)

    judged = await Judge(judge, rubric=RUBRIC, orders=4).score(saying("aaa", "a"))
    assert [t.reward for t in judged] == pytest.approx([(0.6 + 0.15) / 3, (0.2 + 0.05) / 3])
    first = judged.trajectories[0].judgement
    assert first.criteria == pytest.approx({"looks": 0.3, "tells": 0.15, "calm": 0.3})
    assert [vote.criteria for vote in first.votes] == [first.criteria] * 4
    assert [name.partition("@")[0] for name in judged.judgement.prompt_ids][-1] == "judge/criteria.j2"


async def test_a_judge_behind_http_is_told_which_ids_it_left_out(endpoint):
    def complete(request):
        return says(by_id(request["messages"], request["response_format"]["json_schema"]["schema"]))

    def without_the_last(request):
        scored = json.loads(complete(request).body["choices"][0]["message"]["content"])
        return says(json.dumps(dict(list(scored.items())[:-1])))

    endpoint.script = [without_the_last, complete]
    judge = Judge(Juror("openai/judge", params=endpoint.params), rubric=RUBRIC, orders=1)
    judged = await judge.score(saying("aaa", "a"))
    assert [t.reward for t in judged] == pytest.approx([0.25, 0.25 / 3])
    first, second = endpoint.requests
    entry = first["response_format"]["json_schema"]["schema"]["properties"]["scores"]["items"]
    ids = entry["properties"]["trajectory_id"]["enum"]
    assert len(ids) == 6
    assert all(name in first["messages"][1]["content"] for name in ids)
    assert f"there is no score for {ids[-1]}" in second["messages"][-1]["content"]


async def test_the_stand_in_scores_each_criterion_by_its_own_rules():
    careful, hasty = desk("get_order", "get_policy", "refund", ending=None), desk("refund")
    rubric = Rubric(RUBRIC.text, RUBRIC.criteria[:2])
    judged = await Judge("stand-in", rubric=rubric).score(TrajectoryGroup([careful, hasty]))
    assert [t.judgement and t.judgement.criteria for t in judged] == [
        {"looks": 1.0, "tells": 0.0},
        {"looks": 0.0, "tells": 1.0},
    ]
    assert [t.reward for t in judged] == pytest.approx([2 / 3, 1 / 3])
