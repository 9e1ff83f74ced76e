"""Attempts that failed, or in which nobody answers, are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.reading import read_file

ASK, ANSWER = {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}
RUN: dict[str, Any] = {"name": "agent", "run_type": "chain", "inputs": {"messages": [ASK]}}
CALL: dict[str, Any] = {"type": "GENERATION", "startTime": "2025-01-01", "input": [ASK]}


def runs(**last: Any) -> list[dict[str, Any]]:
    found = [RUN | {"id": str(n), "trace_id": str(n), "outputs": {"messages": [ASK, ANSWER]}} for n in range(3)]
    found[2] |= last
    return found


def observations(**last: Any) -> list[dict[str, Any]]:
    found = [CALL | {"id": f"o{n}", "traceId": str(n), "output": ANSWER} for n in range(3)]
    found[2] |= last
    return found


TRACEBACK = "RateLimitError('slow down')Traceback (most recent call last):\n  File …\nRateLimitError: slow down"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (runs(outputs=None, error=TRACEBACK), "RateLimitError('slow down')"),
        (runs(outputs=None, error="\n" + TRACEBACK.partition(")")[2]), "RateLimitError: slow down"),
        (runs(error="too late"), "too late"),
        (runs(outputs=None, status="error"), "status error"),
        (runs(outputs=None, status="pending"), "it has no outputs (status pending)"),
        (runs(outputs={}), "it has no outputs"),
        (observations(output=None, level="ERROR", statusMessage="boom"), "boom"),
        (observations(output=None), "it has no output"),
    ],
)
def test_a_run_that_ended_badly_is_a_failed_attempt_with_its_reason(
    tmp_path: Path, rows: list[dict[str, Any]], reason: str
) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows))
    reading = read_file(path)
    (group,) = reading.groups
    assert [each.status for each in group] == ["finished", "finished", "failed"]
    assert group.trajectories[2].status_reason == reason
    assert f"1 of 3 attempts failed, and gets no score. First: {path}[2] ({reason})." in reading.notes


def test_rows_in_which_nobody_answers_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in ([ASK, ANSWER], [ASK], [ASK])))
    (note,) = read_file(path).notes
    assert "2 of 3 attempts hold no turn of the assistant" in note
    assert f"First: {path}:2" in note
