"""The memory of a device: what is counted, planned without weights, measured, and what fits."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from transformers import T5Config

from gavel.trainer import device_memory
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.device_memory import GIB, DeviceMemory, TensorBytes
from gavel.trainer.distributed import World
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.learner.replicas import LearnerReplicas
from gavel.trainer.learner.step_bytes import LEAST_TOKENS, MARGIN, MOST_TOKENS, measure_pass, probe_sequence
from gavel.trainer.memory.needs import PlannedPolicy, learner_bytes, measure_step_peaks
from gavel.trainer.memory.plan import Device, MemoryPlan, make_plan
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.lora_layers import lora_targets
from gavel.trainer.policy.policy import Policy, storage_bytes
from gavel.trainer.run_config import RunConfig
from tests.trainer.families import BY_NAME, Family

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("counted_once")]
CPU = DeviceMemory(torch.device("cpu"))


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [(None, None, 2 * GIB), ("max", 7, 2 * GIB), (GIB, GIB // 4, 3 * GIB // 4), (GIB, 2 * GIB, 0)],
)
def test_free_memory_is_what_the_system_and_the_control_group_hand_out(tmp_path, monkeypatch, limit, used, free):
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    monkeypatch.setattr(device_memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=2 * GIB))
    monkeypatch.setattr(device_memory, "_CGROUP", tmp_path)
    assert CPU.free() == free


def profiled_peak(work) -> int:
    """By the allocator's events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    results: Any = found.profiler.kineto_results
    live = peak = 0
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 50), width=st.integers(1, 40), layers=st.integers(1, 4), norm=st.booleans())
def test_the_peak_is_the_allocators(rows, width, layers, norm):
    def work() -> None:
        x = torch.zeros(rows, width)
        for _ in range(layers):
            x = torch.nn.functional.gelu(torch.nn.Linear(width, width)(x))
            x = torch.nn.functional.layer_norm(x, (width,)) if norm else x
        x.sum().backward()

    counted, allocated = TensorBytes.peak_of(work), profiled_peak(work)
    assert counted <= allocated <= 1.3 * counted + 512  # which holds what kernels use within themselves, too


CLOSE = 0.02
"""Of the bytes that are measured."""
TOKENS = 300


def measured(policy: Policy, tokens: int, *, checkpointing: bool) -> int:
    """Peak bytes of a second step, whose AdamW state exists already."""
    learner = Learner(policy)
    config = TrainConfig(gradient_checkpointing=checkpointing, micro_batch_tokens=tokens)

    def step(length: int) -> None:
        batch = Batch(sequences=[TrainedSequence(probe_sequence(length), 1.0, 0)], trajectories=1, groups=1)
        learner.step(batch, config)

    with TensorBytes() as counted:
        step(2)
        learner.optimizer.zero_grad(set_to_none=True)
        counted.peak = counted.live
        step(tokens)
    return counted.peak


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("Qwen3", "SmolLM2", "GPT-OSS", "DeepSeek V3", "Gemma 2", "Qwen3.5"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("Qwen3-MoE", "Phi 2", "Seed-OSS")),
    ],
)
def test_bytes_adapted_layers_and_a_step_of_a_family_are_what_is_planned(name, checkpointing, opened):
    family = BY_NAME[name]
    planned = PlannedPolicy(family.read_config(), LoraSettings(), torch.float32)
    real = family.model(dtype=torch.float32)
    assert (planned.base_bytes, planned.parameter_count) == (storage_bytes(real), real.num_parameters())
    config: Any = planned.model.peft_config["default"]
    assert sorted(config.target_modules) == lora_targets(real)
    assert (planned.spans is None) == bool(family.alone)
    assert len(planned.layer_bytes) == real.config.get_text_config().num_hidden_layers
    (plan,) = measure_step_peaks(planned, [TOKENS], device="cpu", checkpointing=checkpointing)
    own = opened(family, real, lora=LoraSettings())
    assert plan == pytest.approx(measured(own, TOKENS, checkpointing=checkpointing), rel=CLOSE)


WIDE = Family("wide", "qwen3", {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16})
"""Rows that bitsandbytes can hold on a CPU."""


def test_a_base_in_four_bits_and_a_step_over_it_hold_what_is_planned(tmp_path, policy):
    WIDE.model(dtype=torch.float32).save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    four_bits = Policy(str(tmp_path), LoraSettings(), "qwen3", PolicySettings(quantization="4bit"))
    planned = PlannedPolicy(WIDE.read_config(), LoraSettings(), torch.float32, quantized=True)
    base: Any = four_bits.plain_model()
    states = [layer.weight.quant_state for layer in base.modules() if type(layer).__name__ == "Linear4bit"]
    held = sum(tensor.nbytes for tensor in (*base.parameters(), *base.buffers()))
    held += sum(state.absmax.nbytes + state.state2.absmax.nbytes for state in states)
    assert len(states) == 14
    assert planned.base_bytes == pytest.approx(held, rel=CLOSE)
    assert [p.shape for p in planned.parameters()] == [p.shape for p in four_bits.parameters()]
    (plan,) = measure_step_peaks(planned, [TOKENS], device="cpu", checkpointing=False)
    assert plan == pytest.approx(measured(four_bits, TOKENS, checkpointing=False), rel=0.1)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_plan_holds_for_more_tokens_than_were_counted(checkpointing):
    planned = PlannedPolicy(
        Family("long", "qwen3", {"max_position_embeddings": 8192}).read_config(), LoraSettings(), torch.bfloat16
    )
    line = learner_bytes(planned, device="cuda", checkpointing=checkpointing)
    (counted,) = measure_step_peaks(planned, [12000], device="cuda", checkpointing=checkpointing)
    assert line.of(12000) == pytest.approx(counted, rel=0.1)
    assert line.tokens(line.of(12000)) == pytest.approx(12000, abs=1)


def test_measuring_changes_nothing_and_a_pass_of_more_tokens_needs_what_two_small_ones_tell(fresh_policy):
    before = [parameter.detach().clone() for parameter in fresh_policy.parameters()]
    drawn = torch.get_rng_state()
    learner = Learner(fresh_policy)
    need = measure_pass(fresh_policy, CPU, checkpointing=False)
    assert all(torch.equal(one, other) for one, other in zip(before, fresh_policy.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in fresh_policy.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not learner.optimizer.state
    peak = CPU.peak_of(lambda: trained_logprobs(fresh_policy, [probe_sequence(900)]).sum().backward())
    assert need.of(900) == pytest.approx(peak, rel=0.1)


def test_less_free_memory_gives_smaller_micro_batches_and_what_others_will_take_counts(monkeypatch):
    team = LearnerReplicas(World(), EMBEDDED_POLICY, LoraSettings(rank=4))
    plenty = team.fitting_tokens(checkpointing=False, reserved=0)
    monkeypatch.setattr(DeviceMemory, "free", lambda self: GIB)
    little = team.fitting_tokens(checkpointing=False, reserved=GIB * 15 // 16)
    assert plenty == MOST_TOKENS["cpu"]
    assert LEAST_TOKENS < little < plenty


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pass_that_fits_by_measuring_fits_on_the_gpu(fresh_policy):
    memory = DeviceMemory(fresh_policy.device)
    need = measure_pass(fresh_policy, memory, checkpointing=True)
    peak = memory.peak_of(lambda: trained_logprobs(fresh_policy, [probe_sequence(3000)]).sum().backward())
    assert peak <= need.of(3000) * (1 + MARGIN)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Configs without weights, by family."""

    def make(name: str, **changes: Any) -> str:
        path = tmp_path_factory.mktemp("config")
        config = BY_NAME[name].read_config()
        for key, value in changes.items():
            setattr(config, key, value)
        config.save_pretrained(path)
        return str(path)

    return make


def plan(source: str, size: int, kind: Any = "cuda", **settings: Any) -> MemoryPlan:
    return make_plan(source, RunConfig.model_validate({"scenario": "", **settings}), Device(kind, size))


def test_what_fits_adds_up_and_a_model_that_cannot_be_trained_is_refused_with_a_remedy(directory):
    with pytest.raises(BaseModelError, match="Choose another"):
        PlannedPolicy(T5Config(), LoraSettings(), torch.float32)
    found = plan(directory("Qwen3"), 400 * 2**20)
    parts = found.base + 4 * found.adapter + found.sampler_bytes + found.pass_checkpointed
    assert (found.fits, found.remedies, found.checkpointing) == (True, [], True)
    assert found.needed == pytest.approx(parts, abs=8)
    assert found.needed <= 400 * 2**20 * (1 - MARGIN)
    assert found.pass_checkpointed < found.pass_whole
    assert found.context == 512, "the model's own, which is shorter"


def test_four_bits_and_shards_hold_less_of_the_base_and_experts_that_are_adapted_count(directory):
    model = directory("Qwen3", hidden_size=256, intermediate_size=1024)
    whole = plan(model, GIB)
    quantized = plan(model, GIB, model={"policy": {"quantization": "4bit"}})
    sharded = plan(model, GIB, backend={"shard_base": True, "processes": 4, "engine": "http://127.0.0.1:1"})
    assert quantized.base < 0.75 * whole.base
    assert sharded.base < whole.base
    assert sharded.sampler_bytes == 0, "a server elsewhere"
    assert whole.parameters == quantized.parameters
    base = directory("Qwen3-MoE", max_position_embeddings=4096)
    without, found = plan(base, GIB), plan(base, GIB, model={"lora": {"experts": True}})
    layers, experts, hidden, inner, rank = 2, 4, 32, 16, 16
    more = layers * experts * rank * (hidden + 2 * inner + inner + hidden)
    assert found.adapter_parameters == without.adapter_parameters + more
    assert found.adapted_layers == without.adapted_layers + 2 * layers
    assert found.pass_whole > without.pass_whole
