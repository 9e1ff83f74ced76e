"""What trackers show of groups: members with their scores, some of the step's groups, texts up to a limit."""

import json

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.runs.trackers.group_table import CHARACTERS, COLUMNS, GROUPS, messages, rows
from tests.scenarios.formats.attempts import hostile, whole


def row(trajectory: Trajectory) -> dict:
    (found,) = rows(3, [TrajectoryGroup([trajectory], judgement=GroupJudgement(status="scored", cost_usd=0.5))])
    return dict(zip(COLUMNS, found, strict=True))


def test_a_member_is_a_row_with_its_scores_and_what_it_said():
    found = row(whole())
    text = found.pop("text")
    assert found == {
        **{"step": 3, "group": 0, "member": 0, "status": "finished", "reward": 0.75, "score": 0.75},
        **{"standard_error": None, "judge_cost_usd": 0.5, "explanation": "Cites the order.", "flags": None},
    }
    assert '→ get_order({"id": "A1"})' in text
    assert "[user] See this.\n[image]" in text


def test_hostile_texts_are_unicode_and_as_long_as_the_limit():
    found = row(hostile("x" * 10_000_000))
    json.dumps(found, allow_nan=False).encode()
    assert found["reward"] is None
    assert len(found["text"]) < CHARACTERS + 100
    assert found["text"].endswith("characters more)")
    json.dumps(messages(hostile("x" * 10_000_000)), allow_nan=False).encode()


def test_the_groups_that_are_not_shown_are_told():
    found = rows(3, [TrajectoryGroup([whole(), whole()])] * (GROUPS + 5))
    assert len(found) == 2 * GROUPS + 1
    assert found[-1][-1] == "5 more groups of this step are in the run directory"
    assert {len(each) for each in found} == {len(COLUMNS)}


def test_a_conversation_is_plain_messages_with_their_calls():
    said = messages(whole())
    assert [each["role"] for each in said] == ["system", "user", "assistant", "tool", "assistant"]
    assert said[2]["tool_calls"][0]["function"] == {"name": "get_order", "arguments": '{"id": "A1"}'}
    assert said[3]["tool_call_id"] == "c1"
