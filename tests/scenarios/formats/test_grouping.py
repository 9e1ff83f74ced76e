"""Attempts at the same task are put together, and what cannot be compared is never together in silence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.formats.grouping import asked, group
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.formats.row import Attempt, Row, WholeGroup
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import saying

SYSTEM = {"role": "system", "content": "You run a desk."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def attempt(*messages: Any, number: int = 0, task: dict[str, Any] | None = None, **fields: Any) -> Attempt:
    trajectory = Trajectory(messages_and_choices=list(messages), metadata=fields)
    return Attempt(trajectory, Row(f"f:{number}", {"messages": [], **fields}), "x", task)


def sizes(*attempts: Attempt, by: str | None = None) -> list[int]:
    return [len(each) for each in group(attempts, by).groups]


@given(st.lists(st.integers(0, 4), max_size=20))
def test_rows_are_gathered_by_their_opening_in_order_of_appearance(asked: list[int]) -> None:
    attempts = [attempt(SYSTEM, user(f"Where is {n}?"), assistant(f"{at}")) for at, n in enumerate(asked)]
    found = group(attempts).groups
    places = [[int(each.messages()[-1]["content"]) for each in members] for members in found]
    first = list(dict.fromkeys(asked))
    assert places == [[at for at, n in enumerate(asked) if n == task] for task in first]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ([user("a")], [user("a")], True),
        ([user("a")], [user("a ")], False),
        ([user("a")], [SYSTEM, user("a")], False),
        ([user("a")], [{"role": "user", "content": [{"type": "text", "text": "a"}]}], True),
        ([SYSTEM, user("a")], [SYSTEM | {"role": "developer"}, user("a")], True),
        ([SYSTEM], [SYSTEM], True),
        ([SYSTEM, assistant("Hello!"), user("a")], [SYSTEM, assistant("Hello!"), user("a")], True),
        ([SYSTEM, assistant("Hello!"), user("a")], [SYSTEM, assistant("Hello!"), user("b")], False),
        ([], [], False),
    ],
)
def test_openings_are_compared_whitespace_exact_and_up_to_the_first_request(
    one: list[Any], other: list[Any], together: bool
) -> None:
    assert (sizes(attempt(*one, assistant("x")), attempt(*other, assistant("y"))) == [2]) is together


@pytest.mark.parametrize("name", ["rubric", "reference", "criteria"])
def test_rows_with_different_truths_are_different_tasks(name: str) -> None:
    given: list[dict[str, Any]] = [{name: value} for value in ("one", "two", "one")]
    found = group([attempt(user("a"), assistant("x"), **each) for each in given]).groups
    assert [(len(each), each.metadata) for each in found] == [(2, {name: "one"}), (1, {name: "two"})]


def test_by_puts_together_what_differs_but_tells() -> None:
    attempts = [attempt(user(text), assistant("x"), number=n, task_id=7) for n, text in enumerate(["a", "b"])]
    found = group(attempts, "task_id")
    assert [each.metadata for each in found.groups] == [{"task_id": 7}]
    (note,) = found.notes
    assert "1 group put together by --by task_id begin with different messages" in note
    assert "task_id 7 (f:0 and f:1)" in note


@pytest.mark.parametrize(
    "fields", [{"task_id": 1}, {"problem_id": "a"}, {"metadata": {"taskId": 1}}, {"taskName": {"n": 1}}]
)
def test_rows_that_name_different_tasks_are_different_groups_though_they_begin_alike(fields: dict[str, Any]) -> None:
    other = json.loads(json.dumps(fields).replace("1", "2").replace('"a"', '"b"'))
    tasks = [fields, other, fields, other, {}]
    found = group([attempt(user("Begin."), assistant(str(n)), **task) for n, task in enumerate(tasks)])
    answers = [[each.messages()[-1]["content"] for each in members] for members in found.groups]
    assert answers == [["0", "2"], ["1", "3"], ["4"]]
    assert found.by in ("task_id", "problem_id", "metadata.taskId", "taskName")
    (note,) = found.notes
    assert "--by opening groups by what stands before the assistant's first turn alone" in note


def test_by_opening_ignores_the_names_of_tasks() -> None:
    attempts = [attempt(user("Begin."), assistant(str(n)), task_id=n) for n in range(2)]
    assert (sizes(*attempts), sizes(*attempts, by="opening")) == ([1, 1], [2])
    own = [attempt(user("Begin."), assistant(str(n)), task={"id": n}) for n in range(2)]
    assert group(own, "opening", own="id").by == "opening messages"
    named = [attempt(user("Begin."), assistant(str(n)), opening=n // 2) for n in range(4)]
    assert [each.metadata for each in group(named, "opening").groups] == [{"opening": 0}, {"opening": 1}]


def test_groups_stay_whole_and_are_told_when_they_compare_different_tasks() -> None:
    same, mixed = saying("one", "two"), saying("one", "two")
    mixed.trajectories[1].messages_and_choices[0] = user("another request")
    found = group([WholeGroup(each, Row(f"f:{n}", {}), "x") for n, each in enumerate([same, mixed])])
    assert found.groups == [same, mixed]
    assert found.by == ""
    assert "1 group put together as they stand in the file" in found.notes[0]


def test_examples_in_a_prompt_are_part_of_what_was_asked() -> None:
    shots = [user("1 + 1?"), assistant("2")]
    first = attempt(*shots, user("2 + 2?"), assistant("4"))
    second = attempt(*shots, user("3 + 3?"), assistant("6"))
    assert [len(each) for each in group([replace(each, prompt=3) for each in (first, second)]).groups] == [1, 1]
    (note,) = group([first, second]).notes
    assert "the members of 1 group part where a user speaks" in note
    assert group([attempt(*shots), attempt(user("1 + 1?"), assistant("3"))]).notes == []


IDS_AND_TIMES = {
    *("id", "_id", "uuid", "timestamp", "ts", "created_at", "createdAt", "updated_at", "created", "date"),
    *("message_id", "messageId", "parentUuid", "parent_id", "trace_id", "session_id", "sessionId", "weight"),
    *("cache_control", "childrenIds", "end_time", "startTime", "userId"),
}
HELD = {"content", "name", "images", "file", "video", "documents", "solid", "identity"}


@pytest.mark.parametrize("name", sorted(IDS_AND_TIMES | HELD))
def test_what_a_message_holds_but_ids_and_times_is_part_of_what_was_asked(name: str) -> None:
    def is_same(*messages: dict[str, Any]) -> bool:
        one, other = (asked(Trajectory(messages_and_choices=[message])) for message in messages)
        return one == other

    assert is_same(*({"role": "user", "content": "Where?", name: value} for value in "ab")) == (name in IDS_AND_TIMES)
    parts = ([{"type": "text", "text": "Where?", name: value}] for value in range(2))
    assert is_same(*({"role": "user", "content": each} for each in parts)) or name in HELD


@pytest.mark.parametrize("name", ["image", "images", "audio", "videos", "documents", "context"])
def test_rows_with_different_content_beside_equal_messages_are_different_tasks(tmp_path: Path, name: str) -> None:
    rows = [{"prompt": "Describe it.", "completion": str(n), name: f"file {n % 2}"} for n in range(4)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    reading = read_file(tmp_path / "rows.json")
    answers = [[each.messages()[-1]["content"] for each in group] for group in reading.groups]
    assert answers == [["0", "2"], ["1", "3"]]
    (note,) = reading.notes
    assert f"the judge is not shown what rows hold beside their messages ({name})" in note


def test_rows_with_an_empty_prompt_are_left_out_unless_a_field_names_their_task(tmp_path: Path) -> None:
    file = tmp_path / "merged.csv"
    file.write_text("prompt,completion,topic\n,Canberra,a\n ,Sydney,a\n,Perth,b\nWho?,Bob,c\nWho?,Ann,c\n")
    reading = read_file(file)
    assert [[each.messages()[-1]["content"] for each in members] for members in reading.groups] == [["Bob", "Ann"]]
    assert "left out: 3" in reading.notes[0]
    assert f"{file}:2" in reading.notes[0]
    assert [len(each) for each in read_file(file, by="topic").groups] == [2, 1, 2]
    blank = [user(""), assistant("Hi")]
    assert sizes(attempt(*blank), attempt(SYSTEM, *blank), attempt(*blank, task_id=1), attempt(*blank, task_id=1)) == [
        2
    ]
    assert sizes(attempt(*blank, images=["a.png"]), attempt(*blank, images=["a.png"])) == [2]
