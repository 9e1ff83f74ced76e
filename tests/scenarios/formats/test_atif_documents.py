"""ATIF documents of agents that differ in how they act and are answered."""

import json
from pathlib import Path
from typing import Any

import atif
import pytest

from gavel.scenarios.formats.atif import documents
from gavel.scenarios.formats.exported import Losses
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.formats.attempts import PIXEL, TOOLS, both, hostile, stored, whole


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


@pytest.mark.parametrize("version", ["1.0", "1.8"])
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


def document(trajectory: Trajectory) -> tuple[atif.Trajectory, Losses]:
    losses = Losses()
    (exported,) = documents(stored(trajectory), "desk", losses)
    return atif.Trajectory.model_validate(json.loads(json.dumps(exported))), losses


def test_steps_hold_calls_results_tokens_and_log_probs():
    found, losses = document(whole())
    assert [step.source for step in found.steps] == ["system", "user", "agent", "agent"]
    assert found.agent.name == "clerk"
    assert found.agent.model_name == "desk"
    assert found.agent.tool_definitions == TOOLS
    _, user, first, last = found.steps
    assert user.message[1].source.path == PIXEL
    assert first.tool_calls[0].arguments == {"id": "A1"}
    assert first.observation.results[0].source_call_id == "c1"
    assert first.observation.results[0].content == "order A1"
    assert first.metrics.prompt_token_ids == [1, 2, 3]
    assert first.metrics.completion_token_ids == [4, 5]
    assert first.metrics.logprobs == [-0.1, -0.2]
    assert last.message == "Done."
    assert losses.notes() == []


def test_rewards_scores_metadata_and_sub_agents_are_in_the_document():
    found, _ = document(whole())
    assert found.final_metrics.extra == {"reward": 0.75, "success": True, "turns": 2}
    kept = found.extra["gavel"]
    assert kept["metadata"] == {"task_id": 7}
    assert kept["logs"] == ["looked up A1"]
    assert kept["judgement"]["explanation"] == "Cites the order."
    assert kept["group"]["step"] == 12
    (sub,) = found.subagent_trajectories
    assert sub.agent.name == "searcher"
    assert [step.message for step in sub.steps] == ["Find it.", "Found."]


def test_a_hostile_attempt_is_a_valid_document_and_each_loss_is_named():
    found, losses = document(hostile())
    assert found.steps[1].message == "� hi \x00"
    assert found.steps[1].extra == {"name": "bob"}
    assert found.steps[0].extra == {"role": "developer"}
    assert found.steps[2].tool_calls[0].extra == {"arguments": "not json"}
    assert found.steps[2].observation.results[0].extra == {"tool_call_id": "nobody"}
    assert found.steps[3].extra == {"parts": [{"type": "video", "url": "v.mp4"}]}
    assert found.notes == "failed: boom �"
    assert found.final_metrics.extra is None
    told = "\n".join(losses.notes())
    for reason in (
        "number that is not finite",
        "lone surrogate",
        "arguments are no JSON object",
        "call without an id",
        "answers no call",
        "no type for",
        "did not finish",
        "nested deeper",
    ):
        assert reason in told


def test_gavel_reads_its_documents_back(tmp_path: Path):
    path = tmp_path / "attempts.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in documents(both(), None, Losses())))
    first, _ = (group.trajectories[0] for group in read_groups(path))
    assert [message["content"] for message in first.messages()] == [
        message["content"] for message in whole().messages()
    ]
    assert first.metrics["independent_reward"] == 0.75
    assert first.tools == TOOLS
    assert [history.messages()[-1]["content"] for history in first.additional_histories] == ["Found."]
