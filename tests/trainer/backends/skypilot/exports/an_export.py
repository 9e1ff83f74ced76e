"""A job to export, and what is common to the tests of all exports."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob
from gavel.trainer.backends.skypilot.own_package import OwnPackage

WHEEL = OwnPackage("id", wheel=Path("/here/gavel_rl-1.2-py3-none-any.whl"))
TOOLS = Path(__file__).parents[5] / ".venvs" / "deploy" / "bin"


def a_job(program: str | None = None, *more: str, package: OwnPackage = WHEEL, **settings: Any) -> ExportedJob:
    return ExportedJob(ClusterSettings(**settings), package, program, more)


def checked(program: str, *arguments: str) -> None:
    """Fails with what the validator finds."""
    found = shutil.which(program, path=str(TOOLS)) or shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed: make test-deploy")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
