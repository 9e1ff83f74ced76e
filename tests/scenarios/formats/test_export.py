"""A file is there when it is whole, nothing is written over, and every format is written with what it lost."""

import json
from pathlib import Path
from typing import Any

import atif
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.scenarios.formats.atif import documents
from gavel.scenarios.formats.export import ExportError, export_file
from gavel.scenarios.formats.exported import TOO_DEEP, Losses
from gavel.scenarios.formats.inspect_log import log_chunks
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.formats.attempts import PIXEL, TOOLS, both, hostile, stored, whole
from tests.scenarios.formats.test_otel_spans import Collector

FILES = [
    ("atif", "a.jsonl"),
    ("verifiers", "v.jsonl"),
    ("otel", "o.jsonl"),
    ("inspect", "i.json"),
    ("agenttraj", "t.jsonl"),
]


@pytest.mark.parametrize(("form", "name"), FILES)
def test_every_format_is_written_as_strict_json(tmp_path: Path, form, name):
    told = export_file(both(), form, tmp_path / name)
    assert "wrote 2 attempts of 1 group as" in told.summary
    assert any("lone surrogate" in note for note in told.notes)
    text = (tmp_path / name).read_text(encoding="utf-8")
    for line in [text] if form == "inspect" else text.splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("form", "name"), FILES)
def test_a_text_of_ten_megabytes_is_written_whole(tmp_path: Path, form, name):
    text = "x" * 10_000_000
    export_file(stored(hostile(text)), form, tmp_path / name)
    assert text in (tmp_path / name).read_text()


@pytest.mark.parametrize(("form", "name"), FILES)
def test_what_cannot_be_exported_leaves_no_file(tmp_path: Path, form, name):
    def groups():
        yield from stored(whole())
        raise ExportError("the next group is damaged", "Restore it.")

    with pytest.raises(ExportError, match="damaged"):
        export_file(groups(), form, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_holds_a_document_for_each_attempt(tmp_path: Path):
    export_file(both(), "atif", tmp_path / "documents")
    assert [path.name for path in sorted((tmp_path / "documents").iterdir())] == ["000000.json", "000001.json"]
    export_file(both(), "verifiers", tmp_path / "results")
    assert len((tmp_path / "results" / "traces.jsonl").read_text().splitlines()) == 3


def test_nothing_is_written_over(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        export_file(both(), "atif", tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("form", "out"), [("inspect", "a.jsonl"), ("atif", "a.json"), ("otel", "a"), ("atif", "http://x")]
)
def test_a_name_that_the_format_does_not_have_is_refused(tmp_path: Path, form, out):
    with pytest.raises(ExportError) as error:
        export_file(both(), form, out if out.startswith("http") else tmp_path / out)
    assert "-o" in error.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_spans_go_to_a_collector():
    collector = Collector()
    told = export_file(both(), "otel", collector.url)
    collector.close()
    assert told.summary.endswith(f"as OpenTelemetry spans to {collector.url}")
    assert len(collector.calls) == 2


@settings(max_examples=25)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4), max_leaves=10))
def test_a_plain_value_stays_as_it_is(value):
    losses = Losses()
    assert losses.plain(value) == value
    assert losses.notes() == []


def test_a_value_nested_too_deep_for_a_parser_is_text():
    value: list = []
    for _ in range(5000):
        value = [value]
    losses = Losses()
    json.loads(json.dumps(losses.plain(value)))
    assert losses.notes() == [f"1 × {TOO_DEEP}"]


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


CREATED = "2026-01-02T03:04:05+00:00"


def written(folder: Path, losses: Losses | None = None) -> Path:
    path = folder / "log.json"
    chunks = log_chunks(both(), "desk", losses or Losses(), name="desk/one", created=CREATED)
    path.write_text("".join(chunks))
    return path


def test_gavel_reads_its_log_back(tmp_path: Path):
    found = [each for group in read_groups(written(tmp_path)) for each in group]
    first, second = found
    assert [message["content"] for message in first.messages()] == [
        message["content"] for message in whole().messages()
    ]
    assert first.metrics["judge"] == 0.75
    assert [tool["function"]["name"] for tool in first.tools or ()] == ["get_order"]
    assert (second.status, second.status_reason) == ("failed", "boom �")


@pytest.mark.exports
def test_inspect_reads_the_log(tmp_path: Path):
    log_of = pytest.importorskip("inspect_ai.log", reason="make test-exports installs inspect_ai")

    log = log_of.read_eval_log(str(written(tmp_path)))
    first, second = log.samples
    assert (log.eval.task, log.eval.model, log.results.total_samples) == ("desk/one", "desk", 2)
    assert [message.role for message in first.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert first.messages[2].tool_calls[0].arguments == {"id": "A1"}
    assert first.messages[1].content[1].type == "image"
    assert first.scores["judge"].explanation == "Cites the order."
    assert [event.event for event in first.events] == ["model", "model", "info", "model"]
    assert [each.logprob for each in first.events[0].output.choices[0].logprobs.content] == [-0.1, -0.2]
    assert first.events[0].tools[0].name == "get_order"
    assert first.output.metadata["token_ids"] == [7]
    assert second.error.message == "boom �"
    assert second.messages[1].text == "� hi \x00"
    summaries = log_of.read_eval_log_sample_summaries(str(written(tmp_path)))
    assert [(each.id, each.epoch) for each in summaries] == [("train/12/0", 1), ("train/12/0", 2)]
    resolved = log_of.resolve_sample_attachments(second, "full")
    assert "attachment://" not in resolved.model_dump_json()
    log_of.write_eval_log(log, str(tmp_path / "again.eval"))
    assert len(log_of.read_eval_log(str(tmp_path / "again.eval")).samples) == 2


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export_file(both(), "atif", tmp_path / "file" / "a.jsonl")
