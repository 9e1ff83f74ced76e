"""The service does what its OpenAPI description says, whatever is sent: no 5xx, no status or body beside it."""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import KeyConfig, ServiceConfig, ServiceLimits
from gavel.judge.service.schemas import HASH_PREFIX, token_hash
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
KEY = "k" * 40
KEYS = {"a-test": KeyConfig(hash=HASH_PREFIX + token_hash(KEY))}
SYSTEMATIC = ["--phases", "examples,coverage"]
"""Each parameter and field at its bounds and beyond."""
RANDOM = ["--phases", "fuzzing", "--max-examples", "25", "--suppress-health-check", "too_slow"]


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
@pytest.mark.parametrize(
    "phases",
    [pytest.param(SYSTEMATIC, id="systematic"), pytest.param(RANDOM, id="random", marks=pytest.mark.thorough)],
)
async def test_whatever_is_sent_is_answered_as_described(tmp_path: Path, phases: list[str]):
    config = ServiceConfig(
        port=0,
        database=str(tmp_path / "service.sqlite"),
        judge=JudgeConfig(models="constant"),
        group_size=2,
        keys=KEYS,
        limits=ServiceLimits(wait_seconds=0.1, deadline_seconds=1),
    )
    search = os.pathsep.join(filter(None, [str(HERE.parents[3]), os.environ.get("PYTHONPATH")]))
    hooks = "tests.judge.service.http.schemathesis_hooks"
    environment = {"SERVICE_KEY": KEY, "SCHEMATHESIS_HOOKS": hooks, "PYTHONPATH": search}
    async with served(config) as service:
        tried = await asyncio.to_thread(
            subprocess.run,
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", HERE / "schemathesis.toml"),
                *("run", f"{service.url}/openapi.json", *phases, "--generation-deterministic", "--no-color"),
            ],
            env=os.environ | environment,
            cwd=tmp_path,  # it leaves a cache there
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    found = re.search(r"Selected: (\d+)/\1\n\s+Tested: \1\n", tried.stdout)  # none was left out
    assert found, tried.stdout
