import pytest

from gavel.judge.errors import JudgeError
from gavel.judge.ruler import ruler, ruler_score_group
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import scores
from tests.judge.groups import OPENING, TOOLS, broken, desk, saying

RULES = "- ends with a message"


async def test_one_line_scores_a_group(endpoint):
    endpoint.script = [scores(0.5)]
    judged = await ruler_score_group(
        saying("a", "b"),
        "openai/judge",
        extra_litellm_params={**endpoint.params, "temperature": 0.25},
        rubric="Be kind.",
        swallow_exceptions=True,
    )
    assert [trajectory.reward for trajectory in judged] == [0.5, 0.5]
    assert all(request["temperature"] == 0.25 for request in endpoint.requests)


async def test_a_judge_that_fails_raises_unless_told_otherwise():
    with pytest.raises(JudgeError, match="no idea"):
        await ruler_score_group(saying("a", "b"), broken)
    judged = await ruler_score_group(saying("a", "b"), broken, swallow_exceptions=True)
    assert all(t.reward is None and t.judgement and "no idea" in (t.judgement.reason or "") for t in judged)


async def test_the_score_and_its_explanation_are_where_code_for_art_looks_for_them():
    judged = await ruler_score_group(TrajectoryGroup([desk("refund"), desk("deny")]), "stand-in", rubric=RULES)
    for trajectory in judged:
        assert trajectory.metrics["ruler_score"] == trajectory.reward
        assert trajectory.logs == [f"RULER explanation: {trajectory.judgement.explanation}"]


async def test_debug_prints_the_votes_and_writes_them_to_the_logs(capsys):
    judged = await ruler_score_group(
        TrajectoryGroup([desk("refund"), desk("deny")]), "stand-in", rubric=RULES, debug=True
    )
    printed = capsys.readouterr().out.splitlines()
    for number, trajectory in enumerate(judged, start=1):
        votes = [line for line in trajectory.logs if ", order " in line]
        assert len(votes) == 2
        own = [line for line in printed if f"trajectory {number}:" in line]
        assert own == [f"[RULER] trajectory {number}: {line}" for line in [*votes, f"{trajectory.reward:g}"]]


async def test_without_a_model_the_default_is_asked(monkeypatch):
    with pytest.raises(JudgeError, match="OPENAI_API_KEY"):
        await ruler_score_group(saying("a", "b"))
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "constant")
    assert [trajectory.reward for trajectory in await ruler_score_group(saying("a", "b"))] == [0.5, 0.5]


async def test_nothing_to_score_is_no_error():
    assert await ruler([]) == []
    empty = await ruler_score_group(TrajectoryGroup([], metadata={"task": 1}))
    assert empty.trajectories == []
    assert empty.metadata == {"task": 1}


async def test_a_group_of_one_is_scored_as_configured():
    [alone] = await ruler([[*OPENING, {"role": "assistant", "content": "Done."}]], "constant")
    assert alone.score is None
    assert alone.reason == "there is no other trajectory to compare it with"
    [scored] = await ruler([[*OPENING, {"role": "assistant", "content": "Done."}]], "constant", alone="scored")
    assert scored.score == 0.5


async def test_bare_message_lists_are_scored_in_order():
    lists = [[*OPENING, {"role": "assistant", "content": text}] for text in ("Done.", "")]
    good, bad = await ruler(lists, "stand-in", rubric=RULES, tools=TOOLS, orders=1)
    assert good.score > bad.score
    assert good.explanation
