"""The image runs the run script; its validator finds nothing."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from gavel.trainer.backends.skypilot.cluster_settings import ClusterError
from gavel.trainer.backends.skypilot.cluster_task import run_text
from gavel.trainer.backends.skypilot.exports.exported_job import dockerfile
from gavel.trainer.backends.skypilot.own_package import OwnPackage
from tests.trainer.backends.skypilot.exports.an_export import a_job, checked


@pytest.mark.slow
@pytest.mark.parametrize("program", [None, "run.toml"])
def test_its_validator_finds_nothing(program: str | None, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(dockerfile(a_job(program, secrets=("HF_TOKEN",))))
    checked("hadolint", str(tmp_path / "Dockerfile"))


def test_it_holds_the_run_script_and_its_arguments_are_python_s(tmp_path: Path) -> None:
    text = dockerfile(a_job(accelerators="H100:2"))
    (script,) = re.findall(r"COPY <<'END_OF_RUN' /opt/gavel/run.sh\n(.*?)END_OF_RUN\n", text, re.DOTALL)
    assert script == run_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    assert json.loads(entry) == ["bash", "/opt/gavel/run.sh"]
    assert json.loads(command)[:3] == ["-m", "gavel", "backend"]
    assert "/srv/gavel/gavel-runs" in command
    assert '"--host", "0.0.0.0"' in command
    (tmp_path / "run.sh").write_text(script)
    given = {"PATH": os.environ["PATH"], "GAVEL_PYTHON": "echo"}
    done = subprocess.run(
        ["bash", tmp_path / "run.sh", *json.loads(command)], env=given, capture_output=True, text=True
    )
    assert done.stdout.strip() == " ".join(json.loads(command))


def test_a_wheel_is_copied_and_a_release_is_not() -> None:
    assert "COPY gavel_rl-1.2-py3-none-any.whl /tmp/" in dockerfile(a_job())
    released = dockerfile(a_job(package=OwnPackage("id", "==1.2")))
    assert ".whl" not in released
    assert "pip install --no-cache-dir 'gavel-rl[service,train]==1.2'" in released


def test_what_to_type_names_secrets_and_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_1234567")
    text = dockerfile(a_job(secrets=("HF_TOKEN",)))
    assert "--env GAVEL_BACKEND_KEY --env HF_TOKEN" in text
    assert "hf_1234567" not in text


@pytest.mark.parametrize("program", ["/home/me/desk.py", "../desk.py:returns", "runs/../../run.toml"])
def test_a_file_that_docker_cannot_copy_is_told(program: str) -> None:
    with pytest.raises(ClusterError, match="outside the folder that docker builds from"):
        dockerfile(a_job(program))
