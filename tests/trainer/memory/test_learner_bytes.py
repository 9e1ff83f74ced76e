"""What a plan says of the learner, against what the learner holds on this CPU."""

from typing import Any

import pytest
import torch

from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.step_bytes import probe_sequence
from gavel.trainer.memory.needs import PlannedPolicy, learner_bytes, step_peaks
from gavel.trainer.policy.policy import Policy, load_base
from gavel.trainer.tensor_bytes import TensorBytes
from tests.trainer.families import FAMILIES, Family

pytestmark = pytest.mark.slow

MARGIN = 0.02
"""Of the bytes that are measured."""
TOKENS = 300
BY_NAME = {family.name: family for family in FAMILIES}


def real_policy(family: Family, dtype: torch.dtype) -> Policy:
    """A random model, in the embedded policy's place."""
    settings = PolicySettings(dtype="float32" if dtype == torch.float32 else "bfloat16")
    config = family.read_config()
    policy = Policy.__new__(Policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gavel.trainer.policy.policy.load_config", lambda _: config)
        policy.__init__(EMBEDDED_POLICY, LoraSettings(), "qwen3", settings, load=lambda *_: family.model(dtype=dtype))
    return policy


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
        "Qwen3",  # dense
        "SmolLM2",  # tied embeddings
        pytest.param("Qwen3-MoE", marks=pytest.mark.thorough),
        "GPT-OSS",  # a mixture with sinks and windows
        "DeepSeek V3",  # latent attention
        "Gemma 2",  # soft caps
        "Qwen3.5",  # linear attention
        pytest.param("Phi 2", marks=pytest.mark.thorough),  # a head with a bias
        pytest.param("Seed-OSS", marks=pytest.mark.thorough),
    ],
)
def test_a_step_of_a_family_holds_what_is_planned(name, checkpointing):
    family = BY_NAME[name]
    planned = PlannedPolicy(family.read_config(), LoraSettings(), torch.float32)
    (plan,) = step_peaks(planned, [TOKENS], device="cpu", checkpointing=checkpointing)
    found = measured(real_policy(family, torch.float32), TOKENS, checkpointing=checkpointing)
    assert plan == pytest.approx(found, rel=MARGIN)


def test_bfloat16_needs_what_is_planned_too():
    planned = PlannedPolicy(BY_NAME["Qwen3"].read_config(), LoraSettings(), torch.bfloat16)
    (plan,) = step_peaks(planned, [TOKENS], device="cpu", checkpointing=False)
    found = measured(real_policy(BY_NAME["Qwen3"], torch.bfloat16), TOKENS, checkpointing=False)
    assert plan == pytest.approx(found, rel=MARGIN)


WIDE = Family("wide", "qwen3", {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16})
"""Rows that bitsandbytes can hold on a CPU."""


@pytest.fixture(scope="module")
def four_bits(tmp_path_factory) -> Policy:
    directory = tmp_path_factory.mktemp("wide")
    WIDE.model(dtype=torch.float32).save_pretrained(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gavel.trainer.policy.policy.load_config", lambda _: WIDE.read_config())
        return Policy(
            EMBEDDED_POLICY,
            LoraSettings(),
            "qwen3",
            PolicySettings(quantization="4bit"),
            load=lambda _, dtype, device: load_base(str(directory), dtype, device, "4bit"),
        )


def test_a_base_in_four_bits_is_counted_without_its_weights(four_bits):
    planned = PlannedPolicy(WIDE.read_config(), LoraSettings(), torch.float32, quantized=True)
    base: Any = four_bits.plain_model()
    states = [layer.weight.quant_state for layer in base.modules() if type(layer).__name__ == "Linear4bit"]
    held = sum(tensor.nbytes for tensor in (*base.parameters(), *base.buffers()))
    held += sum(state.absmax.nbytes + state.state2.absmax.nbytes for state in states)
    assert len(states) == 14
    assert planned.base_bytes == pytest.approx(held, rel=MARGIN)
    assert [p.shape for p in planned.parameters()] == [p.shape for p in four_bits.parameters()]


def test_a_step_over_four_bits_holds_what_is_planned(four_bits):
    planned = PlannedPolicy(WIDE.read_config(), LoraSettings(), torch.float32, quantized=True)
    (plan,) = step_peaks(planned, [TOKENS], device="cpu", checkpointing=False)
    assert plan == pytest.approx(measured(four_bits, TOKENS, checkpointing=False), rel=0.1)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_plan_holds_for_more_tokens_than_were_counted(checkpointing):
    planned = PlannedPolicy(
        Family("long", "qwen3", {"max_position_embeddings": 8192}).read_config(), LoraSettings(), torch.bfloat16
    )
    line = learner_bytes(planned, device="cuda", checkpointing=checkpointing)
    (counted,) = step_peaks(planned, [12000], device="cuda", checkpointing=checkpointing)
    assert line.of(12000) == pytest.approx(counted, rel=0.1)
    assert line.tokens(line.of(12000)) == pytest.approx(12000, abs=1)
