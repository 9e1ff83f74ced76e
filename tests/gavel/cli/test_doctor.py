import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gavel.base.extras import missing_parts
from gavel.cli import doctor
from tests.endpoint import Endpoint, says
from tests.vendors import PERMANENT


@pytest.mark.parametrize(
    ("variables", "status", "told"),
    [
        ({}, 0, ["GAVEL_JUDGE_MODEL not set → stand-in", "OPENAI_API_KEY –", "Next: `gavel demo`"]),
        (
            {"GAVEL_JUDGE_MODEL": "openai/gpt-5-mini", "OPENAI_API_KEY": "sk-very-secret"},
            0,
            ["openai/gpt-5-mini", "OPENAI_API_KEY ✓"],
        ),
        ({"GAVEL_JUDGE_MODEL": "openai/gpt-5-mini"}, 1, ["OPENAI_API_KEY, which is not set", ".env"]),
        ({"GAVEL_RUNS": "taken/runs"}, 1, ["the run directory taken/runs cannot be written"]),
        ({"GAVEL_PRICES": "{"}, 1, ["GAVEL_PRICES is not a table of prices"]),
        ({"PATH": "broken:/usr/bin:/bin"}, 1, ["nvidia-smi failed"]),
        ({"PATH": "works:/usr/bin:/bin"}, None, ["NVIDIA H100 80GB HBM3, 81559 MiB"]),
    ],
)
def test_what_is_set_is_shown_and_what_cannot_work_is_a_problem(
    variables: dict[str, str], status: int | None, told: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "taken").write_text("")
    for name, script in {"broken": "exit 9", "works": "echo 'NVIDIA H100 80GB HBM3, 81559 MiB'"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name / "nvidia-smi").chmod(0o755)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    printed = io.StringIO()
    found = doctor.report(Console(file=printed, width=120))
    text = printed.getvalue()
    assert status in (None, found), text
    assert all(each in text for each in told), text
    assert "very-secret" not in text
    assert not (tmp_path / "runs").exists()


def test_an_extra_is_missing_what_its_metadata_names(monkeypatch: pytest.MonkeyPatch):
    metadata = ["httpx>=0.27", 'absent-part>=1; extra == "train"', 'rich>=13; extra == "train"']
    metadata += ['gavel-rl[train]; extra == "gpu"', 'absent-too; extra == "gpu"']
    monkeypatch.setattr("gavel.base.extras.requires", lambda _: metadata)
    assert missing_parts("train") == ["absent-part"]
    assert missing_parts("gpu") == ["absent-part", "absent-too"]


def ask_judge(*arguments: str):
    return CliRunner().invoke(doctor.app, ["--judge", *arguments])


def test_a_judge_that_answers_or_is_on_this_machine_is_well(endpoint: Endpoint):
    assert "gavel/stand-in ✓ on this machine" in ask_judge("stand-in").output
    endpoint.script = [lambda _: says('{"ready": true}')]
    params = [option for name, value in endpoint.params.items() for option in ("--judge-param", f"{name}={value}")]
    result = ask_judge("openai/judge", *params, "--judge-param", "reasoning_effort=low")
    assert result.exit_code == 0, result
    text = " ".join(result.output.split())
    assert "openai/judge ✓ answered in" in text
    assert "replies as json_schema · cost unknown (set GAVEL_PRICES) · served as m" in text
    assert [request["reasoning_effort"] for request in endpoint.requests] == ["low"]


def test_a_judge_that_cannot_be_asked_is_a_problem_with_a_remedy(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_BASE", endpoint.params["api_base"])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "openai/judge")
    endpoint.script = [lambda _: PERMANENT["openai: wrong key"]]
    result = ask_judge()
    assert result.exit_code == 1
    assert result.output.startswith("✗ openai/judge failed")
    assert "\n  " in result.output
    assert "very-secret" not in result.output
    assert len(endpoint.requests) == 1
