"""What a pass needs is measured, and the micro-batch follows from it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.config import LoraSettings
from gavel.trainer.device_memory import GIB, DeviceMemory
from gavel.trainer.distributed import World
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner import step_bytes
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.learner.replicas import LearnerReplicas
from gavel.trainer.learner.step_bytes import (
    LEAST_TOKENS,
    MARGIN,
    MOST_TOKENS,
    PassBytes,
    measure_pass,
    probe_sequence,
)

CPU = DeviceMemory(torch.device("cpu"))


@given(fixed=st.integers(0, 10**9), per_token=st.integers(1, 10**7), free=st.integers(0, 10**12))
def test_the_most_tokens_that_fit_do_fit_and_one_more_does_not(fixed, per_token, free):
    need = PassBytes(fixed, per_token)
    tokens = need.tokens(free)
    assert tokens == 0 or need.of(tokens) <= free
    assert need.of(tokens + 1) > free or free < fixed


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_of_more_tokens_needs_what_two_small_ones_tell(policy, checkpointing):
    need = measure_pass(policy, CPU, checkpointing=checkpointing)

    def one_pass() -> None:
        trained_logprobs(policy, [probe_sequence(900)]).sum().backward()
        for parameter in policy.parameters():
            parameter.grad = None

    assert need.of(900) == pytest.approx(CPU.peak_of(one_pass), rel=0.1)


@pytest.mark.slow
def test_measuring_changes_nothing(fresh_policy):
    before = [parameter.detach().clone() for parameter in fresh_policy.parameters()]
    drawn = torch.get_rng_state()
    learner = Learner(fresh_policy)
    measure_pass(fresh_policy, CPU, checkpointing=False)
    assert all(torch.equal(one, other) for one, other in zip(before, fresh_policy.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in fresh_policy.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not learner.optimizer.state


@pytest.mark.slow
def test_less_free_memory_gives_smaller_micro_batches_and_what_others_will_take_counts():
    class Small(DeviceMemory):
        def free(self) -> int:
            return GIB

    team = LearnerReplicas(World(), EMBEDDED_POLICY, LoraSettings(rank=4))
    plenty = team.fitting_pass(checkpointing=False, reserved=0)
    little = team.fitting_pass(checkpointing=False, reserved=GIB * 15 // 16, memory=Small(torch.device("cpu")))
    assert plenty.tokens == MOST_TOKENS["cpu"]
    assert LEAST_TOKENS < little.tokens < plenty.tokens
    assert little.free < GIB // 16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pass_that_fits_by_measuring_fits_on_the_gpu(fresh_policy):
    memory = DeviceMemory(fresh_policy.device)
    need = measure_pass(fresh_policy, memory, checkpointing=True)

    def one_pass() -> None:
        trained_logprobs(fresh_policy, [probe_sequence(3000)]).sum().backward()

    assert memory.peak_of(one_pass) <= need.of(3000) * (1 + MARGIN)


def test_a_pass_without_checkpointing_that_runs_out_of_memory_fits_nowhere(monkeypatch, policy):
    def no_room(*given):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(step_bytes, "trained_logprobs", no_room)
    assert measure_pass(policy, CPU, checkpointing=False).tokens(10**12) == 0
    with pytest.raises(torch.OutOfMemoryError):
        measure_pass(policy, CPU, checkpointing=True)
