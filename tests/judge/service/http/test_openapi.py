"""The service does what its OpenAPI description says, whatever is sent: no 5xx, no status or body beside it."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import KeyConfig, ServiceConfig, ServiceLimits
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PHASES = ["--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--generation-deterministic", "--no-color"]


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
async def test_whatever_is_sent_is_answered_as_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERVICE_KEY", "k" * 40)
    config = ServiceConfig(
        port=0,
        database=str(tmp_path / "service.sqlite"),
        judge=JudgeConfig(models="constant"),
        group_size=2,
        keys={"schemathesis": KeyConfig(env="SERVICE_KEY")},
        limits=ServiceLimits(wait_seconds=0.1, deadline_seconds=1),
    )
    async with served(config) as service:
        tried = await asyncio.to_thread(
            subprocess.run,
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", HERE / "schemathesis.toml"),
                *("run", f"{service.url}/openapi.json", *PHASES),
            ],
            env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.judge.service.http.schemathesis_hooks"},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "Tested: 14" in tried.stdout, tried.stdout
