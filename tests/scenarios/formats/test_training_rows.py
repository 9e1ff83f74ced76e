"""Rows of AgentGym's and Atropos' trainers, and back."""

import json
import math
from pathlib import Path

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.formats.export import export_file, stored_groups
from gavel.scenarios.formats.reading import read_file, read_groups
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.formats.attempts import TOOLS, call, sampled

OPENING = [
    {"from": "human", "loss": None, "value": "Craft things."},
    {"from": "gpt", "loss": False, "value": "OK."},
    {"from": "human", "loss": None, "value": "Goal: craft a stick"},
]


def learned(text: str) -> dict[str, object]:
    return {"from": "gpt", "loss": True, "value": text}


def row(item: str, *texts: str, **more: object) -> dict[str, object]:
    turns: list[dict[str, object]] = list(OPENING)
    for text in texts:
        turns += [learned(text), {"from": "human", "loss": None, "value": f"seen {text}"}]
    return {"conversations": turns, "item_id": item, **more}


def written(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return path


def test_a_file_is_read_by_item_and_only_learned_turns_are_sampled_ones(tmp_path: Path) -> None:
    rows = [row("textcraft_1", "Action: a"), row("textcraft_2", "Action: b"), row("textcraft_1", "Action: c", reward=1)]
    reading = read_file(written(tmp_path / "t.jsonl", *rows))
    assert reading.summary == "reads as: AgentTraj, 3 rows in 2 groups by item_id"
    first, second = reading.groups
    assert [len(first), len(second)] == [2, 1]
    items = first.trajectories[0].messages_and_choices
    assert [isinstance(item, Choice) for item in items] == [False, False, False, True, False]
    assert [m["role"] for m in first.trajectories[0].messages()] == ["user", "assistant", "user", "assistant", "user"]
    assert first.trajectories[1].metrics["independent_reward"] == 1.0


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ({"from": "gpt", "loss": "true", "value": "x"}, "conversations.3.loss is 'true'"),
        ({"from": "gpt", "loss": True, "value": None}, "conversations.3.value is no text"),
    ],
)
def test_a_turn_of_other_types_is_told_with_its_place(turn: dict[str, object], told: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"conversations": [*OPENING, turn], "item_id": "1"})
    with pytest.raises(RowError, match=told) as caught:
        read_file(path)
    assert caught.value.remedy


def test_what_is_read_is_written_as_it_was(tmp_path: Path) -> None:
    rows = [row("textcraft_1", "Thought: é\n\nAction: a", "Action: b"), row("textcraft_2", "Action: c")]
    groups = read_file(written(tmp_path / "in.jsonl", *rows)).groups
    told = export_file(stored_groups(groups), "agenttraj", tmp_path / "out.jsonl")
    back = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [{k: each[k] for k in ("conversations", "item_id")} for each in back] == rows
    assert told.notes == []


def test_turns_of_a_conversation_without_sampled_ones_are_all_learned_from(tmp_path: Path) -> None:
    said = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    export_file(
        stored_groups([TrajectoryGroup([Trajectory(messages_and_choices=said)])]), "agenttraj", tmp_path / "o.jsonl"
    )
    (back,) = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [turn["loss"] for turn in back["conversations"]] == [None, True, None, True]


def test_system_prompt_tools_and_calls_become_text_and_are_counted(tmp_path: Path) -> None:
    attempt = Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You run the desk."},
            {"role": "user", "content": "Where is A1?"},
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
    told = export_file(stored_groups([TrajectoryGroup([attempt])]), "agenttraj", tmp_path / "out.jsonl")
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "conversations": [
            {
                "from": "human",
                "loss": None,
                "value": "You run the desk.\n\nTools:\n- get_order(id: string): Look up an order.",
            },
            {"from": "gpt", "loss": False, "value": "OK."},
            {"from": "human", "loss": None, "value": "Where is A1?"},
            {
                "from": "gpt",
                "loss": True,
                "value": 'Thought: I look.\n\nAction: get_order {"id": "A1"}\n\nAction: get_order {"id": "A2"}',
            },
            {"from": "human", "loss": None, "value": "here\n\nthere"},
            {"from": "gpt", "loss": True, "value": "It is here."},
        ],
        "item_id": "A1",
        "reward": 0.5,
        "success": 1.0,
    }
    assert [note.partition(" × ")[2] for note in told.notes] == [
        "tools that the agent was shown: written as text into the opening instruction",
        "tool call: written as `Action: NAME {…}`",
        "message that follows another one of the same speaker: joined to it",
    ]
    again = read_file(tmp_path / "out.jsonl").groups[0].trajectories[0]
    assert [choice.message.content for choice in again.choices()][-1] == "It is here."


GROUP = {
    "tokens": [[7, 8, 20, 9, 21], [7, 8, 22]],
    "masks": [[-100, -100, 20, -100, 21], [-100, -100, 22]],
    "scores": [1.0, 0.5],
    "inference_logprobs": [[1.0, 1.0, -0.5, 1.0, -0.25], [1.0, 1.0, -2.0]],
    "messages": [
        [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": "On."},
            {"role": "assistant", "content": "second"},
        ],
        [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "other"}],
    ],
    "advantages": [],
    "group_overrides": {},
}


def groups_file(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "groups.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_a_row_is_a_group_with_scores_and_tokens(tmp_path: Path):
    reading = read_file(groups_file(tmp_path, GROUP, GROUP | {"env_id": 3}))
    assert reading.summary.startswith("reads as: Atropos groups, 2 rows in 2 groups")
    first, second = reading.groups
    assert [trajectory.reward for trajectory in first] == [1.0, 0.5]
    assert [choice.model_extra["token_ids"] for choice in first.trajectories[0].choices()] == [[20], [21]]
    assert [message["content"] for message in first.trajectories[0].messages()] == ["Go.", "first", "On.", "second"]
    assert second.metadata["env_id"] == 3


def test_groups_are_written_as_they_were_read(tmp_path: Path):
    out = tmp_path / "out.jsonl"
    told = export_file(stored_groups(read_groups(groups_file(tmp_path, GROUP))), "atropos", out)
    assert told.summary.startswith("wrote 2 attempts of 1 group as Atropos groups")
    (line,) = out.read_text().splitlines()
    kept = ("tokens", "masks", "scores", "inference_logprobs", "messages")
    assert {name: json.loads(line)[name] for name in kept} == {name: GROUP[name] for name in kept}


def test_only_what_is_written_is_counted(tmp_path: Path):
    groups = [group for _ in range(2) for group in read_groups(groups_file(tmp_path, GROUP))]
    groups[0].trajectories[1].reward = math.nan
    told = export_file(stored_groups(groups), "atropos", tmp_path / "out.jsonl")
    assert told.summary.startswith("wrote 3 attempts of 2 groups")
    assert told.notes == ["left out or changed: 1 × attempt left out: it has no score"]


def test_a_member_whose_text_is_one_message_is_read_without_tokens_and_told(tmp_path: Path):
    whole = [[{"role": "user", "content": "<|user|>Go.<|assistant|>first"}], GROUP["messages"][1]]
    reading = read_file(groups_file(tmp_path, GROUP | {"messages": whole}))
    assert any("read as text, without tokens" in note for note in reading.notes)
    assert reading.groups[0].trajectories[0].messages() == [
        {"role": "assistant", "content": "<|user|>Go.<|assistant|>first"}
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"messages": None}, "no messages"), ({"scores": [1.0]}, "scores has 1 members"), ({"masks": "x"}, "masks")],
)
def test_a_row_that_cannot_be_read_is_told_with_its_place(tmp_path: Path, changes: dict, told: str):
    with pytest.raises(RowError) as raised:
        read_groups(groups_file(tmp_path, GROUP, GROUP | changes))
    assert told in str(raised.value)
    assert "2" in str(raised.value)
