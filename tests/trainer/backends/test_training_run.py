"""What a training run measures first is kept; tokens that experts route otherwise are told."""

import json
import logging

import pytest

from gavel.trainer.backends.training_run import FILE, MemorySettings, OutlyingTokens
from gavel.trainer.config import SamplerCorrection, TrainConfig
from gavel.trainer.learner.step_bytes import FittedPass, PassBytes
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError

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


@pytest.mark.parametrize(
    ("device", "chosen", "found"),
    [
        ("cpu", (False, 8000, None), {"without_checkpointing": 8000}),
        ("cuda", (None, 8000, 7000), {"with_checkpointing": 8000, "without_checkpointing": 7000}),
    ],
)
def test_what_is_measured_first_is_kept_by_later_steps_and_by_a_resumed_run(directory, device, chosen, found):
    fit = Fit()
    first = MemorySettings(directory, device, fit).filled(OPEN)
    assert (first.gradient_checkpointing, first.micro_batch_tokens, first.whole_pass_tokens) == chosen
    for other in ("cpu", "cuda"):  # resumed, also on another device
        assert MemorySettings(directory, other, fit).filled(OPEN) == first
    assert len(fit.asked) == len(found)
    kept = json.loads((directory.path / FILE).read_text())
    assert kept["micro_batch_tokens"] == found
    assert kept["measured"][next(iter(found))] == {"free_bytes": 10**9, "pass_bytes": 5, "pass_bytes_per_token": 101}
    assert directory.path / FILE in directory.entries()


def test_what_a_call_sets_itself_wins_and_is_not_kept(directory):
    fit = Fit()
    settings = MemorySettings(directory, "cpu", fit)
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
        fit = Fit()
        settings = MemorySettings(directory, device, fit)
        settings.filled(TrainConfig(**first))
        if restarts:
            settings = MemorySettings(directory, "cpu", fit)
        chosen.append(settings.filled(OPEN))
        directory.close()
    assert chosen[0] == chosen[1]
    assert chosen[0].gradient_checkpointing is (None if device == "cuda" else False)
    # A GPU's first call sets `micro_batch_tokens` alone, and measures what fits without checkpointing.
    assert chosen[0].micro_batch_tokens == (7000 if device == "cuda" and not checkpointing else 8000)


@pytest.mark.parametrize(
    "held",
    [
        {"gradient_checkpointing": None, "micro_batch_tokens": None},
        {"gradient_checkpointing": False, "micro_batch_tokens": 300},
        {"gradient_checkpointing": "false", "micro_batch_tokens": {}},
        {"gradient_checkpointing": False, "micro_batch_tokens": {"without_checkpointing": -5}},
        {"gradient_checkpointing": False, "micro_batch_tokens": {"without_checkpointing": "300"}},
        {"gradient_checkpointing": False, "micro_batch_tokens": {}, "measured": 7},
    ],
)
def test_a_file_that_holds_something_else_is_refused_when_the_run_is_opened(directory, held):
    directory.describe(held, FILE)
    with pytest.raises(RunDirectoryError, match="memory settings") as caught:
        MemorySettings(directory, "cpu", Fit())
    assert "Restore the file, or delete it" in str(caught.value)


def test_a_file_that_is_no_json_is_refused_and_without_it_the_run_goes_on(directory):
    (directory.path / FILE).write_text("[1,2")
    with pytest.raises(RunDirectoryError, match=FILE) as caught:
        MemorySettings(directory, "cpu", Fit())
    assert "or delete it" in str(caught.value)
    (directory.path / FILE).unlink()
    assert MemorySettings(directory, "cpu", Fit()).filled(OPEN).micro_batch_tokens == 8000


CONFIG = TrainConfig()
MASKED = TrainConfig(sampler_correction=SamplerCorrection(mode="token_mask", floor=0.5, cap=5.0))


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gavel")


def test_they_are_counted_and_a_few_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    watched = OutlyingTokens(experts=True)
    assert watched.of_step(0.0, 1000, CONFIG) == {"tokens_outlying": 0}
    assert watched.of_step(0.009, 1000, CONFIG) == {"tokens_outlying": 9}
    assert not caplog.records


def test_many_are_told_with_the_remedy_and_again_when_their_share_has_doubled(caplog: pytest.LogCaptureFixture) -> None:
    watched = OutlyingTokens(experts=True)
    for share in (0.02, 0.03, 0.035, 0.05, 0.06):
        watched.of_step(share, 1000, CONFIG)
    told = [record.getMessage() for record in caplog.records]
    assert ["20 of 1000" in told[0], "50 of 1000" in told[1], len(told)] == [True, True, 2]
    assert "other experts" in told[0]
    assert "token_mask" in told[0]
