"""A log that Inspect's reader and its viewer's summaries take (make test-exports), and what it holds."""

import json
from pathlib import Path

import pytest

from gavel.scenarios.formats.exported import Losses
from gavel.scenarios.formats.inspect_log import log_chunks
from gavel.scenarios.formats.reading import read_groups
from tests.scenarios.formats.attempts import both, hostile, run_program, stored, whole

CREATED = "2026-01-02T03:04:05+00:00"


def written(folder: Path, losses: Losses | None = None) -> Path:
    path = folder / "log.json"
    chunks = log_chunks(both(), "desk", losses or Losses(), name="desk/one", created=CREATED)
    path.write_text("".join(chunks))
    return path


def test_long_texts_of_events_stand_once():
    text = "x" * 100_000
    log = "".join(log_chunks(stored(hostile(text), hostile(text)), None, Losses(), name="n", created=CREATED))
    assert len(log) < 5 * len(text)  # once among the messages, once among the attachments, of two samples
    json.loads(log)


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
    assert "train/12/0 1 5 {'reward': 0.75" in run_program("inspect_ai", tmp_path)
    log_of.write_eval_log(log, str(tmp_path / "again.eval"))
    assert len(log_of.read_eval_log(str(tmp_path / "again.eval")).samples) == 2
