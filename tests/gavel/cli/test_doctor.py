import io
from pathlib import Path

import pytest
from rich.console import Console

from gavel.cli.doctor import doctor
from gavel.extras import missing_parts


def report() -> tuple[int, str]:
    text = io.StringIO()
    status = doctor(Console(file=text, width=120))
    return status, text.getvalue()


def test_a_fresh_installation_is_well_and_told_what_to_try():
    status, text = report()
    assert status == 0, text
    assert "GAVEL_JUDGE_MODEL not set → stand-in" in text
    assert "OPENAI_API_KEY –" in text
    assert "Next: `gavel demo`" in text


def test_a_key_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "openai/o3")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    status, text = report()
    assert status == 0, text
    assert "openai/o3" in text
    assert "OPENAI_API_KEY ✓" in text
    assert "very-secret" not in text


def test_a_judge_without_its_key_is_a_problem_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "openai/o3")
    status, text = report()
    assert status == 1
    assert "the model openai/o3 needs OPENAI_API_KEY, which is not set." in text
    assert ".env" in text


def test_a_run_directory_that_cannot_be_one_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("GAVEL_RUNS", "taken/runs")
    status, text = report()
    assert status == 1
    assert "the run directory taken/runs cannot be written" in text
    assert not (tmp_path / "runs").exists()


def test_prices_that_cannot_be_read_are_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GAVEL_PRICES", "{")
    status, text = report()
    assert status == 1
    assert "GAVEL_PRICES is not a table of prices" in text


def test_the_gpu_is_what_the_driver_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "NVIDIA H100 80GB HBM3, 81559 MiB" in report()[1]


def test_a_driver_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    status, text = report()
    assert status == 1
    assert "nvidia-smi failed" in text


def test_an_extra_is_missing_what_its_metadata_names(monkeypatch: pytest.MonkeyPatch):
    metadata = ["httpx>=0.27", 'absent-part>=1; extra == "train"', 'rich>=13; extra == "train"']
    metadata += ['gavel-rl[train]; extra == "gpu"', 'absent-too; extra == "gpu"']
    monkeypatch.setattr("gavel.extras.requires", lambda _: metadata)
    assert missing_parts("train") == ["absent-part"]
    assert missing_parts("gpu") == ["absent-part", "absent-too"]
