"""The GPU's benchmark runs, over a small base."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learner_gpu.py"


@pytest.mark.slow
def test_the_benchmark_for_a_gpu_measures_a_step_that_equals_the_padded_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dry"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-3)
    assert max(found["gradient_errors"].values()) < 0.1
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
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dry", "--shape", "moe"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-3)
    assert max(found["gradient_errors"].values()) < 0.1
    active = 2 * (2 * 64 * 64 + 2 * 64 * 32) + 2 * 2 * 3 * 64 * 32
    operations = 6 * active * 384 + 4 * 64 * 2048 * 2 * 8 * 16
    assert found["mfu"] == pytest.approx(operations / found["seconds"] / 989e12)


@pytest.mark.slow
def test_the_benchmark_measures_a_base_in_4_bits_and_counts_the_same_operations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dry", "--quantization", "4bit"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found["layers_in_4_bits"] == 2 * 7
    assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-3)
    assert max(found["gradient_errors"].values()) < 0.1
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    assert found["mfu"] == pytest.approx((6 * linear * 384 + 4 * 64 * 2048 * 256) / found["seconds"] / 989e12)


@pytest.mark.slow
def test_ligers_kernels_are_measured_beside_our_own_over_the_same_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    switched: list[Any] = []
    monkeypatch.setattr("gavel.trainer.policy.policy.liger_is_used", lambda settings, *_: settings.use_liger_kernel)
    monkeypatch.setattr("gavel.trainer.policy.policy.use_liger", lambda base, **_: switched.append(base))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dry", "--liger"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert len(switched) == 2, "the one that is compared, and the one that is timed"
    assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-6)
    assert set(found["gradient_errors"]) == {"own", "padded", "liger"}
    assert max(found["gradient_errors"].values()) < 1e-5
    assert found["own_over_liger"] == pytest.approx(found["seconds"] / found["liger_seconds"])


@pytest.mark.slow
@pytest.mark.thorough
def test_all_parts_have_a_row_within_the_time_that_is_told_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script: Any = runpy.run_path(str(SCRIPT))
    parts = [("dense", None, 300), ("moe", None, 0.01)]
    monkeypatch.setitem(script["measure_all"].__globals__, "PARTS", parts)
    in_time, late = script["measure_all"](["--dry"])
    assert capsys.readouterr().err.splitlines()[-1].split() == ["at", "most", "300.01", "s", "in", "all"]
    assert (in_time["shape"], in_time["unique_tokens"]) == ("dense", 384)
    assert "failed" not in in_time
    assert (late["shape"], late["failed"]) == ("moe", "not done in 0 seconds")


@pytest.mark.slow
def test_the_time_plan_of_all_parts_is_below_eight_minutes_and_a_failing_part_says_why() -> None:
    script: Any = runpy.run_path(str(SCRIPT))
    assert sum(seconds for *_, seconds in script["PARTS"]) < 480
    shapes = {(shape, form) for shape in ("dense", "moe") for form in (None, "4bit")}
    assert {part[:2] for part in script["PARTS"]} == shapes | {("dense", "liger")}
    found = script["in_own_process"](["--shape", "round"], 300)
    assert "invalid choice: 'round'" in found["failed"]
