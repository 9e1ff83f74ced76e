"""Rows with an input and an output are attempts at the input."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.reading import read_file

MESSAGES = [{"role": "user", "content": "Where?"}]


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"input": "Where?", "gts": "here", "score": 0.5, "step": 1}, "Where?"),
        ({"instruction": "Where?", "input": ""}, "Where?"),
        ({"instruction": "Sum up.", "input": "A text."}, "Sum up.\n\nA text."),
        ({"input": MESSAGES, "expected": None, "span_attributes": {"type": "llm"}}, "Where?"),
        ({"input": {"question": "Where?"}}, "Where?"),
        ({"input": json.dumps({"messages": MESSAGES})}, "Where?"),
    ],
)
def test_inputs_are_what_was_asked(tmp_path: Path, row: dict[str, Any], asked: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "output": text}) + "\n" for text in ("one", "two")))
    reading = read_file(path)
    assert reading.summary == "reads as: inputs and outputs, 2 rows in 1 group by opening messages"
    assert [[m["content"] for m in each.messages()] for each in reading.groups[0]] == [[asked, "one"], [asked, "two"]]


@pytest.mark.parametrize(
    "output",
    [
        [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "one"}}],
        {"role": "assistant", "content": "one"},
        {"answer": "one"},
    ],
)
def test_outputs_are_what_the_assistant_said(tmp_path: Path, output: Any) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps([{"input": MESSAGES, "output": output}]))
    (group,) = read_file(path).groups
    assert group.trajectories[0].messages() == [*MESSAGES, {"role": "assistant", "content": "one"}]


def test_inputs_with_examples_are_asked_as_a_whole(tmp_path: Path) -> None:
    shots = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "1"}]
    rows = [{"input": [*shots, {"role": "user", "content": text}], "output": "x"} for text in ("2?", "3?")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert [len(group) for group in read_file(tmp_path / "rows.json").groups] == [1, 1]
