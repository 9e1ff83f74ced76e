"""What `gavel backend` refuses when it starts, rather than when a client registers a model."""

import importlib.util
from pathlib import Path

import pytest

from tests.forked import gavel

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("asked", [("--vllm-replicas", "2"), ("--engine", "vllm")])
def test_vllm_that_is_not_here_is_told_at_the_start(tmp_path: Path, asked: tuple[str, ...]) -> None:
    done = gavel("backend", "--port", "0", *asked, cwd=tmp_path, GAVEL_VLLM_PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "there is no interpreter /no/such/python to start vLLM with" in done.stderr
    assert "Install vllm" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(importlib.util.find_spec("trackio") is not None, reason="trackio is installed")
def test_a_tracker_that_is_not_here_is_told_at_the_start(tmp_path: Path) -> None:
    done = gavel("backend", "--port", "0", "--tracker", "trackio", cwd=tmp_path)
    assert done.returncode == 1
    assert "trackio is not installed" in done.stderr
