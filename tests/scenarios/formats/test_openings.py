"""What was asked is the same for two recordings of one request, and differs where the requests do."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.grouping import asked, named_task
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.trajectory import Trajectory


def attempt(*messages: dict[str, Any], **fields: Any) -> Trajectory:
    return Trajectory(messages_and_choices=list(messages), metadata=fields)


@pytest.mark.parametrize(
    "name",
    [
        *("id", "_id", "uuid", "timestamp", "ts", "created_at", "createdAt", "updated_at", "created", "date"),
        *("message_id", "messageId", "parentUuid", "parent_id", "trace_id", "session_id", "sessionId", "weight"),
        *("cache_control", "childrenIds", "end_time", "startTime", "userId"),
    ],
)
def test_ids_and_times_of_a_message_are_no_part_of_what_was_asked(name: str) -> None:
    one, other = ({"role": "user", "content": "Where?", name: value} for value in ("a", "b"))
    assert asked(attempt(one)) == asked(attempt(other))
    parts = [{"role": "user", "content": [{"type": "text", "text": "Where?", name: n}]} for n in range(2)]
    assert asked(attempt(parts[0])) == asked(attempt(parts[1]))


@pytest.mark.parametrize("name", ["content", "name", "images", "file", "video", "documents", "solid", "identity"])
def test_what_a_message_holds_is_part_of_what_was_asked(name: str) -> None:
    one, other = ({"role": "user", "content": "Where?", name: value} for value in ("a", "b"))
    assert asked(attempt(one)) != asked(attempt(other))


def test_a_file_s_id_within_a_part_is_part_of_what_was_asked() -> None:
    files = [{"type": "file", "file": {"file_id": name}} for name in ("a", "b")]
    one, other = (attempt({"role": "user", "content": [file]}) for file in files)
    assert asked(one) != asked(other)


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({"task_id": 1, "seed": 2}, {"task_id": 1}),
        ({"taskId": 1, "problem_id": "p", "id": 3}, {"taskId": 1, "problem_id": "p"}),
        ({"metadata": {"instance_id": "x-1", "model": "m"}}, {"metadata.instance_id": "x-1"}),
        ({"info": {"task": {"n": 1}}, "extra_info": {"index": 4}}, {"info.task": {"n": 1}}),
        ({"task_id": None, "run_id": 7, "question": "Where?", "tasks": 3}, {}),
    ],
)
def test_fields_that_name_a_task_are_known(fields: dict[str, Any], task: dict[str, Any]) -> None:
    assert named_task(attempt({"role": "user", "content": "Where?"}, **fields)) == task


@pytest.mark.parametrize("name", ["image", "images", "audio", "videos", "documents", "context"])
def test_rows_with_different_content_beside_equal_messages_are_different_tasks(tmp_path: Path, name: str) -> None:
    rows = [{"prompt": "Describe it.", "completion": str(n), name: f"file {n % 2}"} for n in range(4)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    reading = read_file(tmp_path / "rows.json")
    answers = [[each.messages()[-1]["content"] for each in group] for group in reading.groups]
    assert answers == [["0", "2"], ["1", "3"]]
    (note,) = reading.notes
    assert f"the judge is not shown what rows hold beside their messages ({name})" in note


def test_a_context_that_is_no_text_is_no_part_of_what_was_asked() -> None:
    one, other = (attempt({"role": "user", "content": "Where?"}, context={"run": n}) for n in range(2))
    assert asked(one) == asked(other)
