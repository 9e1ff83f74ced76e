"""Attempts as AgentGym's trainers read them, and back."""

import json
from pathlib import Path

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.formats.export import export_file, stored_groups
from gavel.scenarios.formats.reading import read_file
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
