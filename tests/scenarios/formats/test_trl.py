"""Rows of TRL: answers beside prompts, and pairs and conversations that are exported."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.export import ExportError, export_file, stored_groups
from gavel.scenarios.formats.reading import read_file, read_groups
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.formats.attempts import PIXEL, TOOLS, call


@pytest.mark.parametrize("column", ["messages", "prompt", "completion"])
def test_messages_that_a_table_keeps_as_printed_arrays_are_refused_with_the_remedy(tmp_path, column):
    printed = "[{'content': 'Where?', 'role': 'user'}\n {'content': 'm', 'role': 'assistant'}]"
    row = {"prompt": "Q", "completion": "A"} if column != "messages" else {}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, column: printed}))
    with pytest.raises(RowError, match=f"{column}: it is text, and no JSON list") as error:
        read_groups(tmp_path / "rows.jsonl")
    assert "df.to_json" in error.value.remedy


ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]


def member(text: str, reward: float | None, error: float | None = None, order: str = "", **more: Any) -> Trajectory:
    """An answer, after a look at an order where one is named."""
    looked: list[Any] = []
    if order:
        calls = [call(json.dumps({"id": order}), f"call-{text}")]
        looked = [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"call-{text}", "content": f"order {order}"},
        ]
    return Trajectory(
        messages_and_choices=[*ASKED, *looked, {"role": "assistant", "content": text}],
        tools=TOOLS if order else None,
        reward=reward,
        judgement=Judgement(score=reward, standard_error=error),
        **more,
    )


def written(folder: Path, form: Any, *groups: list[Trajectory], **settings: Any) -> list[dict[str, Any]]:
    out = folder / f"{form}.jsonl"
    export_file(stored_groups(map(TrajectoryGroup, groups)), form, out, **settings)
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_the_clearest_pair_of_a_group_is_written(tmp_path: Path) -> None:
    (row,) = written(tmp_path, "dpo", [member("b", 0.5), member("c", 0.1), member("a", 0.9), member("d", None)])
    assert row["prompt"] == ASKED
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("a", "c")
    assert (row["score_chosen"], row["score_rejected"]) == (0.9, 0.1)


@pytest.mark.parametrize(
    ("members", "margin"),
    [
        ([member("a", 0.9), member("b", 0.85)], 0.1),
        ([member("a", 0.9, 0.2), member("b", 0.5, 0.2)], 0.1),
        ([member("a", 0.9), member("b", None)], 0.0),
        ([member("a", 0.9), member("b", 0.1, status="failed")], 0.1),
        ([member("a", 0.9), member("a", 0.1)], 0.1),
    ],
    ids=["too close", "within noise", "unscored", "failed", "the same answer"],
)
def test_what_is_no_preference_is_not_written(tmp_path: Path, members: list[Trajectory], margin: float) -> None:
    with pytest.raises(ExportError):
        written(tmp_path, "dpo", members, margin=margin)
    assert list(tmp_path.iterdir()) == []
    assert len(written(tmp_path, "dpo", members, [member("x", 1.0), member("y", 0.0)], margin=margin)) == 1


def test_the_prompt_ends_where_the_members_part(tmp_path: Path) -> None:
    apart, shared = written(
        tmp_path,
        "dpo",
        [member("a", 0.9, order="A1"), member("b", 0.1, order="A2")],
        [member("a", 0.9, order="A1"), member("b", 0.1, order="A1")],
    )
    assert apart["prompt"] == ASKED
    assert apart["chosen"][0]["tool_calls"][0]["function"] == {"name": "get_order", "arguments": {"id": "A1"}}
    assert [message["role"] for message in shared["prompt"]] == ["system", "user", "assistant", "tool"]
    assert shared["rejected"] == [{"role": "assistant", "content": "b"}]
    assert json.loads(shared["tools"]) == TOOLS


def test_the_best_whole_member_is_a_conversation(tmp_path: Path) -> None:
    pictured = member("x", 1.0)
    pictured.messages_and_choices[1] = {
        "role": "user",
        "content": [{"type": "text", "text": "See."}, {"type": "image_url", "image_url": {"url": PIXEL}}],
    }
    groups = [
        [member("worse", 0.2), member("best", 0.9, order="A1"), member("cut", 1.0, status="truncated")],
        [member("low", 0.3)],
        [pictured],
        [member("alike", 0.4), member("too", 0.4)],
    ]
    (row,) = written(tmp_path, "sft", *groups, above=0.5)
    assert row["messages"][-1] == {"role": "assistant", "content": "best"}
    assert row["score"] == 0.9
    (tmp_path / "sft.jsonl").unlink()
    assert [each["messages"][-1]["content"] for each in written(tmp_path, "sft", *groups)] == ["best"]
    (tmp_path / "sft.jsonl").unlink()
    above = [each["messages"][-1]["content"] for each in written(tmp_path, "sft", *groups, above=0.2)]
    assert above == ["best", "low", "alike", "too"]


@pytest.mark.parametrize("form", ["sft", "dpo"])
def test_thoughts_are_written_and_what_rows_do_not_have_is_told(tmp_path: Path, form: str) -> None:
    best, other = member("best", 0.9), member("other", 0.1)
    best.messages_and_choices[-1] = {"role": "assistant", "content": "best", "thinking": "Hm.", "mood": "calm"}
    done = export_file(stored_groups([TrajectoryGroup([best, other])]), form, tmp_path / "rows.jsonl")
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    said = (row["chosen"] if form == "dpo" else row["messages"])[-1]
    assert said == {"role": "assistant", "content": "best", "reasoning_content": "Hm."}
    assert any("1 × message with fields" in note for note in done.notes)


def test_pairs_are_read_back(tmp_path: Path) -> None:
    written(tmp_path, "dpo", [member("a", 0.9, order="A1"), member("b", 0.1, order="A2")])
    (group,) = read_file(tmp_path / "dpo.jsonl").groups
    assert [each.metrics["independent_reward"] for each in group] == [1, 0]
    assert group.trajectories[0].tools == TOOLS
    assert group.trajectories[0].messages()[2]["tool_calls"][0]["function"]["arguments"] == '{"id": "A1"}'


@pytest.mark.slow
def test_trl_takes_both(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is in the dev extra")
    from trl.data_utils import is_conversational, maybe_apply_chat_template

    from tests.integrations.tiny_policy import tiny_policy

    groups = [
        [member("a", 0.9, order="A1"), member("b", 0.1, order="A2")],
        [member("c", 0.9), member("d", 0.1)],
    ]
    _, tokenizer = tiny_policy()
    for form in ("dpo", "sft"):
        rows = written(tmp_path, form, *groups)
        assert all(map(is_conversational, rows))
        said = [maybe_apply_chat_template(row, tokenizer) for row in rows]
        assert all("b" in row["rejected"] or "d" in row["rejected"] for row in said if "rejected" in row)
