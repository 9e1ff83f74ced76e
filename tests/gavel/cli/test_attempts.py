import json
from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.cli.named import read_attempts


def test_how_a_file_was_read_is_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": text, "completion": "x", "task": 1} for text in ("[red]a\x1b[2J", "b")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (group,) = read_attempts(tmp_path / "rows.jsonl", "task")
    assert len(group) == 2
    out, told = capsys.readouterr()
    assert out == ""
    first, note = told.splitlines()
    assert first == "reads as: TRL prompt/completion, 2 rows in 1 group by task"
    assert note.startswith("note: 1 group put together by --by task begin with different messages")


def test_a_program_is_not_read_as_trajectories(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text("import gavel\n")
    with pytest.raises(GavelError) as error:
        read_attempts(tmp_path / "desk.py")
    assert "gavel check" in error.value.remedy
