"""Standard input, pipes, several files and directories are read like one file."""

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.formats.row import RowError

ROWS = "".join(
    json.dumps({"messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": str(n)}]}) + "\n"
    for n in range(3)
)


class Stdin:
    def __init__(self, text: str) -> None:
        self.buffer = io.BytesIO(text.encode())


def test_a_hyphen_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(ROWS))
    assert [len(group) for group in read_file(Path("-")).groups] == [3]
    monkeypatch.setattr(sys, "stdin", Stdin(ROWS + "{]\n"))
    with pytest.raises(RowError, match=r"^standard input:4 is no JSON value"):
        read_file(Path("-"))


def test_a_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(ROWS))
    writer.start()
    reading = read_file(pipe)
    writer.join()
    assert reading.summary == "reads as: OpenAI messages, 3 rows in 1 group by opening messages"


def test_rows_of_several_files_are_grouped_together(tmp_path: Path) -> None:
    lines = ROWS.splitlines()
    for number, line in enumerate(lines):
        (tmp_path / f"{number}.jsonl").write_text(line)
    reading = read_file([tmp_path / f"{number}.jsonl" for number in (2, 0)])
    assert [[each.messages()[-1]["content"] for each in group] for group in reading.groups] == [["2", "0"]]
    (tmp_path / "other.jsonl").write_text('{"prompt": "Where?", "completion": "x"}')
    with pytest.raises(RowError, match=r"0\.jsonl:1 is of the format OpenAI messages, and .*other\.jsonl:1 of TRL"):
        read_file([tmp_path / "0.jsonl", tmp_path / "other.jsonl"])


def test_files_of_a_directory_that_hold_no_attempts_are_left_out_and_told(tmp_path: Path) -> None:
    for number, line in enumerate(ROWS.splitlines()):
        (tmp_path / f"trial-{number}").mkdir()
        (tmp_path / f"trial-{number}" / "messages.json").write_text(line)
        (tmp_path / f"trial-{number}" / "config.json").write_text('{"model": "m"}')
    reading = read_file(tmp_path)
    assert [len(group) for group in reading.groups] == [3]
    (note,) = reading.notes
    assert "3 files of" in note
    assert "left out, without attempts: trial-0/config.json, trial-1/config.json" in note


def test_a_directory_without_any_attempts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": "m"}')
    with pytest.raises(RowError, match=r"config\.json:1 is of no format"):
        read_file(tmp_path)
