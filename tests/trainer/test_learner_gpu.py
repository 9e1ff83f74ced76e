"""The GPU's benchmark runs, over a small base."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learner_gpu.py"


@pytest.mark.slow
def test_the_benchmark_for_a_gpu_measures_a_step_that_equals_the_padded_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--tiny"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-3)
    assert found["gradient_cosine"] > 0.98
    assert (found["unique_tokens"], found["padded_tokens"], found["trained_tokens"]) == (384, 1280, 256)
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    head, scored, peak = 64 * 2048, 2 * 8 * 16, 989e12
    for name, factor in [("mfu", 6), ("mfu_without_recompute", 4)]:
        operations = factor * linear * 384 + 4 * head * scored
        assert found[name] == pytest.approx(operations / found["seconds"] / peak)


@pytest.mark.slow
def test_the_benchmark_counts_the_experts_that_a_token_goes_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--tiny", "--shape", "moe"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-3)
    assert found["gradient_cosine"] > 0.98
    active = 2 * (2 * 64 * 64 + 2 * 64 * 32) + 2 * 2 * 3 * 64 * 32
    operations = 6 * active * 384 + 4 * 64 * 2048 * 2 * 8 * 16
    assert found["mfu"] == pytest.approx(operations / found["seconds"] / 989e12)


@pytest.mark.slow
def test_the_benchmark_measures_a_base_in_4_bits_and_counts_the_same_operations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--tiny", "--quantization", "4bit"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found["layers_in_4_bits"] == 2 * 7
    assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-3)
    assert found["gradient_cosine"] > 0.98
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    assert found["mfu"] == pytest.approx((6 * linear * 384 + 4 * 64 * 2048 * 256) / found["seconds"] / 989e12)
