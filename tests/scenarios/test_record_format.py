"""Rows of groups carry a version: older ones are read, later ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import RECORD_VERSION, RecordVersionError, TrajectoryGroup, from_row, to_line
from gavel.scenarios.trajectory import Trajectory

GROUP = TrajectoryGroup([Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}], reward=0.5)])


def test_a_line_is_read_back_as_the_same_group() -> None:
    row = json.loads(to_line(GROUP))
    assert row["format_version"] == RECORD_VERSION
    assert from_row(row).to_json() == GROUP.to_json()
    assert from_row(json.loads(GROUP.to_json())).to_json() == GROUP.to_json()


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(RECORD_VERSION + 1, "Upgrade"), ("two", "Restore"), (None, "Restore"), (True, "Restore"), (0, "Restore")],
)
def test_a_version_that_is_not_known_is_refused(version: Any, remedy: str) -> None:
    row = json.loads(to_line(GROUP)) | {"format_version": version}
    with pytest.raises(RecordVersionError, match="format_version") as error:
        from_row(row)
    assert remedy in error.value.remedy


def test_a_file_of_a_later_version_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    later = json.dumps(json.loads(GROUP.to_json()) | {"format_version": RECORD_VERSION + 1})
    path.write_text(f"{to_line(GROUP)}\n{later}\n")
    with pytest.raises(RowError, match=r"judged\.jsonl:2 cannot be read: it has format_version") as error:
        read_groups(path)
    assert "Upgrade" in error.value.remedy
    path.write_text(f"{to_line(GROUP)}\n{GROUP.to_json()}\n")
    assert len(read_groups(path)) == 2
