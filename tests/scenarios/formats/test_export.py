"""A file is there when it is whole, nothing is written over, and every format is written with what it lost."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.scenarios.formats.export import ExportError, export_file
from gavel.scenarios.formats.exported import TOO_DEEP, Losses
from tests.scenarios.formats.attempts import both, stored, whole
from tests.scenarios.formats.test_otel_spans import Collector

FILES = [("otel", "o.jsonl"), ("agenttraj", "t.jsonl")]


@pytest.mark.parametrize(("form", "name"), FILES)
def test_every_format_is_written_as_strict_json(tmp_path: Path, form, name):
    told = export_file(both(), form, tmp_path / name)
    assert "wrote 2 attempts of 1 group as" in told.summary
    assert any("lone surrogate" in note for note in told.notes)
    for line in (tmp_path / name).read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("form", "name"), FILES)
def test_what_cannot_be_exported_leaves_no_file(tmp_path: Path, form, name):
    def groups():
        yield from stored(whole())
        raise ExportError("the next group is damaged", "Restore it.")

    with pytest.raises(ExportError, match="damaged"):
        export_file(groups(), form, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        export_file(both(), "otel", tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == "mine"


@pytest.mark.parametrize(("form", "out"), [("agenttraj", "a.json"), ("otel", "a"), ("dpo", "http://x")])
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


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export_file(both(), "otel", tmp_path / "file" / "a.jsonl")
