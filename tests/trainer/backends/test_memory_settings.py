"""A run's memory settings are chosen once, and stay."""

import json

import pytest

from gavel.trainer.backends.memory_settings import FILE, MemorySettings
from gavel.trainer.config import TrainConfig
from gavel.trainer.learner.step_bytes import FittedPass, PassBytes
from gavel.trainer.runs.run_directory import RunDirectory

OPEN = TrainConfig()


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path, "tests", "run")
    yield directory
    directory.close()


class Fit:
    """Measures less free memory at every call."""

    def __init__(self, tokens: int = 9000) -> None:
        self.tokens = tokens
        self.asked: list[bool] = []

    def __call__(self, checkpointing: bool) -> FittedPass:
        self.asked.append(checkpointing)
        self.tokens -= 1000
        return FittedPass(self.tokens, 10**9, PassBytes(5.4, 100.6))


@pytest.mark.parametrize(("device", "on"), [("cpu", False), ("cuda", True)])
def test_what_is_measured_first_is_kept_by_later_steps_and_by_a_resumed_run(directory, device, on):
    fit = Fit()
    first = MemorySettings(directory, device, fit, begun=False).filled(OPEN)
    assert (first.gradient_checkpointing, first.micro_batch_tokens) == (on, 8000)
    for other in ("cpu", "cuda"):  # resumed, also on another device
        assert MemorySettings(directory, other, fit, begun=True).filled(OPEN) == first
    assert fit.asked == [on]
    kept = json.loads((directory.path / FILE).read_text())
    mode = "with_checkpointing" if on else "without_checkpointing"
    assert kept["micro_batch_tokens"] == {mode: 8000}
    assert kept["measured"][mode] == {"free_bytes": 10**9, "pass_bytes": 5, "pass_bytes_per_token": 101}
    assert directory.path / FILE in directory.entries()


def test_what_a_call_sets_itself_wins_and_is_not_kept(directory):
    fit = Fit()
    settings = MemorySettings(directory, "cpu", fit, begun=False)
    whole = TrainConfig(micro_batch_tokens=5, gradient_checkpointing=True)
    assert settings.filled(whole) == whole
    assert settings.filled(TrainConfig(micro_batch_tokens=5)).gradient_checkpointing is False
    assert fit.asked == []
    kept = json.loads((directory.path / FILE).read_text())
    assert (kept["gradient_checkpointing"], kept["micro_batch_tokens"]) == (False, {})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("checkpointing", [{}, {"gradient_checkpointing": True}])
def test_a_run_whose_first_steps_set_them_goes_on_alike_with_and_without_a_restart(tmp_path, device, checkpointing):
    first = {"micro_batch_tokens": 5, **checkpointing}
    chosen = []
    for restarts in (False, True):
        directory = RunDirectory(tmp_path, "tests", f"restarts-{restarts}")
        settings = MemorySettings(directory, device, Fit(), begun=False)
        settings.filled(TrainConfig(**first))
        if restarts:
            settings = MemorySettings(directory, "cpu", Fit(), begun=True)
        chosen.append(settings.filled(OPEN))
        directory.close()
    assert chosen[0] == chosen[1]
    assert (chosen[0].gradient_checkpointing, chosen[0].micro_batch_tokens) == (device == "cuda", 8000)


def test_each_way_to_compute_is_measured_for_itself(directory):
    fit = Fit()
    settings = MemorySettings(directory, "cpu", fit, begun=False)
    chosen = [TrainConfig(gradient_checkpointing=on) for on in (True, False, True)]
    assert [settings.filled(each).micro_batch_tokens for each in chosen] == [8000, 7000, 8000]
    assert settings.filled(OPEN).micro_batch_tokens == 7000


def test_a_run_that_was_begun_before_this_was_measured_goes_on_as_it_was(directory):
    fit = Fit()
    filled = MemorySettings(directory, "cuda", fit, begun=True).filled(OPEN)
    assert (filled.gradient_checkpointing, filled.micro_batch_tokens) == (False, 16384)
    assert fit.asked == []
