"""ATIF documents of agents that differ in how they act and are answered."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.trajectory import Trajectory


def read(folder: Path, version: str, *steps: dict[str, Any], **more: Any) -> Trajectory:
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    agent = {"name": "agent", "version": "1", "model_name": "m"}
    document = {"schema_version": f"ATIF-v{version}", "session_id": "s", "agent": agent, "steps": numbered, **more}
    (folder / "trajectory.json").write_text(json.dumps(document))
    ((found,),) = read_groups(folder / "trajectory.json")
    return found


def acts(message: str, *results: dict[str, Any], calls: tuple[str, ...] = ()) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": message}
    if calls:
        step["tool_calls"] = [{"tool_call_id": each, "function_name": "bash", "arguments": {}} for each in calls]
    return {**step, "observation": {"results": list(results)}} if results else step


ASKS = {"source": "user", "message": "Fix it."}


@pytest.mark.parametrize("version", ["1.0", "1.2", "1.4", "1.6", "1.8"])
def test_a_terminal_s_output_is_what_the_agent_is_told_next(tmp_path: Path, version: str):
    found = read(
        tmp_path,
        version,
        ASKS,
        acts("ls", {"content": "a.py"}),
        acts("wait", {"source_call_id": None, "content": ""}),
        acts("done"),
    )
    assert [(each["role"], each["content"]) for each in found.messages()] == [
        ("user", "Fix it."),
        ("assistant", "ls"),
        ("user", "a.py"),
        ("assistant", "wait"),
        ("assistant", "done"),
    ]


def test_results_of_calls_keep_their_calls(tmp_path: Path):
    one, two = ({"source_call_id": name, "content": name.upper()} for name in ("one", "two"))
    found = read(tmp_path, "1.4", ASKS, acts("both", one, two, calls=("one", "two")), acts("done"))
    assert [(each["role"], each.get("tool_call_id")) for each in found.messages()][2:4] == [
        ("tool", "one"),
        ("tool", "two"),
    ]


def test_a_call_may_be_answered_with_nothing(tmp_path: Path):
    found = read(tmp_path, "1.4", ASKS, acts("run", {"source_call_id": "c", "content": None}, calls=("c",)), acts("ok"))
    assert found.messages()[2] == {"role": "tool", "content": "", "tool_call_id": "c"}


def test_what_the_system_saw_stays_the_system_s(tmp_path: Path):
    summary = {"source": "system", "message": "Summarised.", "observation": {"results": [{"content": "so far"}]}}
    found = read(tmp_path, "1.5", ASKS, summary, acts("go on"))
    assert [each["role"] for each in found.messages()] == ["user", "system", "system", "assistant"]
