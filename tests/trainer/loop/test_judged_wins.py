from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.judged_wins import BASE, BEST, best_step, judge_wins


def attempt(task: str, *calls: str, **fields: Any) -> Trajectory:
    """One that calls these tools; the rubric below wants `look` before `act`."""
    turns: list[Any] = []
    for at, name in enumerate(calls):
        call = {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        message = {"role": "assistant", "tool_calls": [call]}
        turns += [
            Choice.model_validate({"index": 0, "finish_reason": "tool_calls", "message": message}),
            {"role": "tool", "tool_call_id": f"c{at}", "content": "done"},
        ]
    return Trajectory(
        messages_and_choices=[{"role": "user", "content": "Do it."}, *turns],
        metadata={"task": {"id": task, "user": "Do it."}},
        reward=0.123,
        **fields,
    )


JUDGE = Judge("stand-in", rubric=Rubric("- calls look before act.\n- calls act at most once."))


async def test_an_attempt_beats_ties_with_or_loses_against_each_rival():
    mine = [attempt("a", "look", "act"), attempt("b", "act"), attempt("c", "look", "act"), attempt("d", "act")]
    base = [attempt("a", "act"), attempt("b", "look", "act"), attempt("c", "look", "act")]
    best = [attempt("a", "look", "act"), attempt("e", "act")]
    await judge_wins(JUDGE, mine, {BASE: base, BEST: best}, 9)
    assert [each.metrics.get("wins/base") for each in mine] == [1.0, 0.0, 0.5, None]
    assert [each.metrics.get("wins/best") for each in mine] == [0.5, None, None, None]
    assert all(each.reward == 0.123 and each.judgement is None for each in (*mine, *base))
    assert not any(each.metrics for each in (*base, *best))


async def test_no_more_are_judged_than_asked_for_and_of_tasks_that_both_have_tried():
    mine = [attempt("new", "act"), *(attempt(f"{n}", "act") for n in range(5))]
    await judge_wins(JUDGE, mine, {BASE: [attempt(f"{n}", "look", "act") for n in range(5)]}, 2)
    assert [each.metrics.get("wins/base") for each in mine] == [None, 0.0, 0.0, None, None, None]


async def test_agents_of_an_episode_are_compared_with_themselves():
    mine = [attempt("a", "look", "act", agent="x"), attempt("a", "act", agent="o")]
    await judge_wins(JUDGE, mine, {BASE: [attempt("a", "act", agent="x"), attempt("a", "look", "act", agent="o")]}, 9)
    assert [each.metrics["wins/base"] for each in mine] == [1.0, 0.0]


async def test_what_the_judge_leaves_unscored_has_no_metric_and_a_judge_that_fails_raises():
    async def silent(messages: list[Message], schema: dict[str, Any]) -> str:
        return "I would rather not."

    mine = [attempt("a", "look")]
    await judge_wins(Judge(silent), mine, {BASE: [attempt("a", "act")]}, 9)
    assert mine[0].metrics == {}

    async def broken(messages: list[Message], schema: dict[str, Any]) -> str:
        raise JudgeError("no money left", "Pay.")

    judge = Judge(broken)
    try:
        await judge_wins(judge, mine, {BASE: [attempt("a", "act")]}, 9)
    except JudgeError as error:
        assert "no money left" in str(error)  # noqa: PT017 - or it is unscored
    assert mine[0].metrics == {}


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([], None),
        ([{"step": 0}], None),
        (
            [
                {"step": 0},
                {"step": 5, "wins/base": 0.6},
                {"step": 10, "wins/base": 0.7},
                {"step": 15, "wins/base": 0.7},
            ],
            15,
        ),
        ([{"step": 5, "wins/base": None}, {"step": 10, "wins/base": 0.1}], 10),
    ],
)
def test_the_best_step_is_that_which_beat_the_base_most_often(rows, best):
    assert best_step(rows) == best
