"""Rows of TRL's, AgentGym's and Atropos' trainers: attempts are exported, and read back."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.formats.export import Exported, ExportError, export_file, stored_groups
from gavel.scenarios.formats.reading import Reading, read_file
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.formats.attempts import PIXEL, TOOLS, call, sampled


def reading_of(folder: Path, *rows: Any) -> Reading:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read_file(path)


def exported(folder: Path, form: str, groups: Iterable[TrajectoryGroup], **settings: Any) -> tuple[Exported, list[Any]]:
    """What is told, and the rows."""
    (out := folder / f"{form}.jsonl").unlink(missing_ok=True)
    told = export_file(stored_groups(groups), form, out, **settings)
    return told, [json.loads(line) for line in out.read_text().splitlines()]


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("column", ["messages", "prompt", "completion"])
def test_messages_that_a_table_keeps_as_printed_arrays_are_refused_with_the_remedy(tmp_path: Path, column: str) -> None:
    printed = "[{'content': 'Where?', 'role': 'user'}\n {'content': 'm', 'role': 'assistant'}]"
    row = {"prompt": "Q", "completion": "A"} if column != "messages" else {}
    with pytest.raises(RowError, match=f"{column}: it is text, and no JSON list") as error:
        reading_of(tmp_path, {**row, column: printed})
    assert "df.to_json" in error.value.remedy


ASKED = [said("system", "Be brief."), said("user", "Where is it?")]


def member(text: str, reward: float | None, error: float | None = None, order: str = "", **more: Any) -> Trajectory:
    """An answer, after a look at an order where one is named."""
    calls = [call(json.dumps({"id": order}), f"call-{text}")]
    looked = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"call-{text}", "content": f"order {order}"},
    ]
    return Trajectory(
        messages_and_choices=[*ASKED, *(looked if order else []), said("assistant", text)],
        tools=TOOLS if order else None,
        reward=reward,
        judgement=Judgement(score=reward, standard_error=error),
        **more,
    )


def written(folder: Path, form: str, *groups: list[Trajectory], **settings: Any) -> list[dict[str, Any]]:
    return exported(folder, form, map(TrajectoryGroup, groups), **settings)[1]


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


def test_the_prompt_of_a_pair_ends_where_the_members_part_and_it_is_read_back(tmp_path: Path) -> None:
    groups = [[member("a", 0.9, order="A1"), member("b", 0.1, order=order)] for order in ("A2", "A1")]
    apart, shared = written(tmp_path, "dpo", *groups)
    assert apart["prompt"] == ASKED
    assert apart["chosen"][0]["tool_calls"][0]["function"] == {"name": "get_order", "arguments": {"id": "A1"}}
    assert [message["role"] for message in shared["prompt"]] == ["system", "user", "assistant", "tool"]
    assert shared["rejected"] == [said("assistant", "b")]
    assert json.loads(shared["tools"]) == TOOLS
    first = read_file(tmp_path / "dpo.jsonl").groups[0]
    assert [each.metrics["independent_reward"] for each in first] == [1, 0]
    assert first.trajectories[0].tools == TOOLS
    assert first.trajectories[0].messages()[2]["tool_calls"][0]["function"]["arguments"] == '{"id": "A1"}'


def test_the_best_whole_member_is_a_conversation(tmp_path: Path) -> None:
    pictured = member("x", 1.0)
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    pictured.messages_and_choices[1] = {"role": "user", "content": [{"type": "text", "text": "See."}, picture]}
    groups = [
        [member("worse", 0.2), member("best", 0.9, order="A1"), member("cut", 1.0, status="truncated")],
        [member("low", 0.3)],
        [pictured],
        [member("alike", 0.4), member("too", 0.4)],
    ]
    for settings, best in (
        ({"above": 0.5}, ["best"]),
        ({}, ["best"]),
        ({"above": 0.2}, ["best", "low", "alike", "too"]),
    ):
        rows = written(tmp_path, "sft", *groups, **settings)
        assert [row["messages"][-1] for row in rows] == [said("assistant", text) for text in best]
        assert rows[0]["score"] == 0.9


@pytest.mark.parametrize("form", ["sft", "dpo"])
def test_thoughts_are_written_and_what_rows_do_not_have_is_told(tmp_path: Path, form: str) -> None:
    best, other = member("best", 0.9), member("other", 0.1)
    best.messages_and_choices[-1] = said("assistant", "best") | {"thinking": "Hm.", "mood": "calm"}
    done, (row,) = exported(tmp_path, form, [TrajectoryGroup([best, other])])
    last = (row["chosen"] if form == "dpo" else row["messages"])[-1]
    assert last == said("assistant", "best") | {"reasoning_content": "Hm."}
    assert any("1 × message with fields" in note for note in done.notes)


@pytest.mark.slow
def test_trl_takes_both(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is in the dev extra")
    from trl.data_utils import is_conversational, maybe_apply_chat_template

    from tests.integrations.tiny_policy import tiny_policy

    groups = [[member("a", 0.9, order="A1"), member("b", 0.1, order="A2")], [member("c", 0.9), member("d", 0.1)]]
    _, tokenizer = tiny_policy()
    for form in ("dpo", "sft"):
        rows = written(tmp_path, form, *groups)
        assert all(map(is_conversational, rows))
        told = [maybe_apply_chat_template(row, tokenizer) for row in rows]
        assert all("b" in row["rejected"] or "d" in row["rejected"] for row in told if "rejected" in row)


def turn(speaker: str, value: str, loss: bool | None = None) -> dict[str, Any]:
    return {"from": speaker, "loss": loss, "value": value}


OPENING = [turn("human", "Craft things."), turn("gpt", "OK.", loss=False), turn("human", "Goal: craft a stick")]


def row(item: str, *texts: str, **more: object) -> dict[str, object]:
    turns = [each for text in texts for each in (turn("gpt", text, loss=True), turn("human", f"seen {text}"))]
    return {"conversations": [*OPENING, *turns], "item_id": item, **more}


def test_a_file_is_read_by_item_and_only_learned_turns_are_sampled_ones(tmp_path: Path) -> None:
    rows = [row("textcraft_1", "Action: a"), row("textcraft_2", "Action: b"), row("textcraft_1", "Action: c", reward=1)]
    reading = reading_of(tmp_path, *rows)
    assert reading.summary == "reads as: AgentTraj, 3 rows in 2 groups by item_id"
    first, second = reading.groups
    assert [len(first), len(second)] == [2, 1]
    items = first.trajectories[0].messages_and_choices
    assert [isinstance(item, Choice) for item in items] == [False, False, False, True, False]
    assert [m["role"] for m in first.trajectories[0].messages()] == ["user", "assistant", "user", "assistant", "user"]
    assert first.trajectories[1].metrics["independent_reward"] == 1.0


def test_what_is_read_is_written_as_it_was(tmp_path: Path) -> None:
    rows = [row("textcraft_1", "Thought: é\n\nAction: a", "Action: b"), row("textcraft_2", "Action: c")]
    told, back = exported(tmp_path, "agenttraj", reading_of(tmp_path, *rows).groups)
    assert [{k: each[k] for k in ("conversations", "item_id")} for each in back] == rows
    assert told.notes == []


def test_turns_of_a_conversation_without_sampled_ones_are_all_learned_from(tmp_path: Path) -> None:
    attempt = Trajectory(messages_and_choices=[said(role, role) for role in ("user", "assistant") * 2])
    _, (back,) = exported(tmp_path, "agenttraj", [TrajectoryGroup([attempt])])
    assert [each["loss"] for each in back["conversations"]] == [None, True, None, True]


def test_system_prompt_tools_and_calls_become_text_and_are_counted(tmp_path: Path) -> None:
    attempt = Trajectory(
        messages_and_choices=[
            said("system", "You run the desk."),
            said("user", "Where is A1?"),
            sampled("I look.", [call(), call('{"id": "A2"}', "c2")]),
            {"role": "tool", "tool_call_id": "c1", "content": "here"},
            {"role": "tool", "tool_call_id": "c2", "content": "there"},
            sampled("It is here."),
        ],
        tools=TOOLS,
        reward=0.5,
        metrics={"success": True},
        metadata={"task": {"id": "A1", "user": "Where is A1?"}},
    )
    told, rows = exported(tmp_path, "agenttraj", [TrajectoryGroup([attempt])])
    calls = 'Thought: I look.\n\nAction: get_order {"id": "A1"}\n\nAction: get_order {"id": "A2"}'
    turns = [
        turn("human", "You run the desk.\n\nTools:\n- get_order(id: string): Look up an order."),
        turn("gpt", "OK.", loss=False),
        turn("human", "Where is A1?"),
        turn("gpt", calls, loss=True),
        turn("human", "here\n\nthere"),
        turn("gpt", "It is here.", loss=True),
    ]
    assert rows == [{"conversations": turns, "item_id": "A1", "reward": 0.5, "success": 1.0}]
    assert [note.partition(" × ")[2] for note in told.notes] == [
        "tools that the agent was shown: written as text into the opening instruction",
        "tool call: written as `Action: NAME {…}`",
        "message that follows another one of the same speaker: joined to it",
    ]
    again = read_file(tmp_path / "agenttraj.jsonl").groups[0].trajectories[0]
    assert [choice.message.content for choice in again.choices()][-1] == "It is here."


OTHER = [said("user", "Go."), said("assistant", "other")]
GROUP = {
    "tokens": [[7, 8, 20, 9, 21], [7, 8, 22]],
    "masks": [[-100, -100, 20, -100, 21], [-100, -100, 22]],
    "scores": [1.0, 0.5],
    "inference_logprobs": [[1.0, 1.0, -0.5, 1.0, -0.25], [1.0, 1.0, -2.0]],
    "messages": [
        [said("user", "Go."), said("assistant", "first"), said("user", "On."), said("assistant", "second")],
        OTHER,
    ],
    "advantages": [],
    "group_overrides": {},
}


def test_a_row_is_a_group_with_scores_and_tokens_and_is_written_as_it_was_read(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, GROUP, GROUP | {"env_id": 3})
    assert reading.summary.startswith("reads as: Atropos groups, 2 rows in 2 groups")
    first, second = reading.groups
    assert [trajectory.reward for trajectory in first] == [1.0, 0.5]
    assert [(choice.model_extra or {})["token_ids"] for choice in first.trajectories[0].choices()] == [[20], [21]]
    assert [message["content"] for message in first.trajectories[0].messages()] == ["Go.", "first", "On.", "second"]
    assert second.metadata["env_id"] == 3
    told, (line,) = exported(tmp_path, "atropos", [first])
    assert told.summary.startswith("wrote 2 attempts of 1 group as Atropos groups")
    kept = ("tokens", "masks", "scores", "inference_logprobs", "messages")
    assert {name: line[name] for name in kept} == {name: GROUP[name] for name in kept}


def test_only_what_is_written_is_counted(tmp_path: Path) -> None:
    groups = reading_of(tmp_path, GROUP, GROUP).groups
    groups[0].trajectories[1].reward = math.nan
    told, _ = exported(tmp_path, "atropos", groups)
    assert told.summary.startswith("wrote 3 attempts of 2 groups")
    assert told.notes == ["left out or changed: 1 × attempt left out: it has no score"]


def test_a_member_whose_text_is_one_message_is_read_without_tokens_and_told(tmp_path: Path) -> None:
    text = "<|user|>Go.<|assistant|>first"
    reading = reading_of(tmp_path, GROUP | {"messages": [[said("user", text)], OTHER]})
    assert any("read as text, without tokens" in note for note in reading.notes)
    assert reading.groups[0].trajectories[0].messages() == [said("assistant", text)]


LEARNED = turn("gpt", "x", loss=True)


@pytest.mark.parametrize(
    ("whole", "changes", "told"),
    [
        (GROUP, {"messages": None}, "no messages"),
        (GROUP, {"scores": [1.0]}, "scores has 1 members"),
        (GROUP, {"masks": "x"}, "masks"),
        (row("1"), {"conversations": [*OPENING, LEARNED | {"loss": "true"}]}, "conversations.3.loss is 'true'"),
        (row("1"), {"conversations": [*OPENING, LEARNED | {"value": None}]}, "conversations.3.value is no text"),
    ],
)
def test_a_row_that_cannot_be_read_is_told_with_its_place(
    tmp_path: Path, whole: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(RowError) as raised:
        reading_of(tmp_path, whole, whole | changes)
    assert told in str(raised.value)
    assert "rows.jsonl:2" in str(raised.value)
    assert raised.value.remedy or whole is GROUP
