"""Precision, quantisation, Unsloth and Liger: other ways to hold the base model, the same policy."""

import importlib.util
import sys
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from gavel.base.extras import install_line
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.kernels.liger import LigerError, liger_is_used
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy import policy as policy_room
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import Policy
from tests.trainer.conftest import a_group, a_model, gradient_of, registered, sequence, tiny_model

pytestmark = pytest.mark.slow

LORA = LoraSettings(rank=4)
HALF = PolicySettings(dtype="bfloat16")
FOUR_BITS = PolicySettings(quantization="4bit")
UNSLOTH = PolicySettings(loader="unsloth", dtype="float32")
IDS = [(7 * n) % 800 for n in range(60)]
TEXTS = [sequence(IDS[:9], IDS[9:30], [-1.0] * 21), sequence(IDS[:9], IDS[20:60], [-1.0] * 40, 0.8)]


@pytest.fixture(params=[False, True], ids=["plain CPU", "CPU with AVX512-BF16"])
def bitsandbytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """bitsandbytes, told on every machine that the CPU has bfloat16 products, and that it has not."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is in the dev extra")
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: request.param)


def learned(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return trained_logprobs(policy, TEXTS)


def step(policy: Policy, rate: float) -> torch.Tensor:
    """Learns to prefer the second text; the gradient that did it."""
    batch = Batch([TrainedSequence(TEXTS[0], -1.0, 0), TrainedSequence(TEXTS[1], 1.0, 0)])
    Learner(policy).step(batch, TrainConfig(learning_rate=rate, max_gradient_norm=1e9))
    return gradient_of(policy)


def test_bfloat16_on_a_cpu_gives_the_policy_and_the_gradient_of_float32_within_its_rounding(policy, fresh_policy):
    half = Policy(EMBEDDED_POLICY, LORA, settings=HALF)
    assert half.dtype == torch.bfloat16
    frozen = {p.dtype for p in half.model.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}
    assert (learned(half) - learned(policy)).abs().mean() < 0.05
    before = [parameter.detach().clone() for parameter in half.parameters()]
    assert {parameter.dtype for parameter in before} == {torch.float32}
    assert torch.cosine_similarity(step(half, 1e-6), step(fresh_policy, 1e-6), dim=0) > 0.99
    moved = max((new - old).abs().max().item() for new, old in zip(half.parameters(), before, strict=True))
    assert moved == pytest.approx(1e-6, rel=0.1), "small updates are not rounded away"


@pytest.fixture
def wide(tmp_path, bitsandbytes, policy) -> str:
    """A base model whose rows are whole blocks of 64."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    tiny_model(vocab_size=832, initializer_range=0.1, **sizes).save_pretrained(tmp_path / "wide")
    policy.tokenizer.save_pretrained(tmp_path / "wide")
    return str(tmp_path / "wide")


def test_a_base_in_four_bits_scores_and_learns_as_the_weights_that_its_numbers_stand_for(wide):
    from bitsandbytes.functional import dequantize_4bit

    quantized, fresh, plain = (Policy(wide, LORA, settings=each) for each in (FOUR_BITS, FOUR_BITS, PolicySettings()))
    scored = learned(quantized)
    layers = [name for name, _ in plain.decoder().named_modules() if name.endswith("_proj")]
    for name in layers:
        found = (each.decoder().get_submodule(name).get_base_layer().weight for each in (quantized, fresh, plain))
        held, untouched, known = found
        assert torch.equal(held, untouched), "a pass without gradients leaves it as it was"
        assert (held.dtype, held.quant_state.quant_type) == (torch.uint8, "nf4")
        meant = dequantize_4bit(held.data, held.quant_state)
        assert torch.cosine_similarity(meant.flatten(), known.flatten(), dim=0) > 0.99
        known.data = meant
    assert len(layers) == 7 * 2
    assert quantized.parameter_count == plain.parameter_count
    assert torch.allclose(scored, learned(plain), atol=1e-3)
    gradient = step(quantized, 1e-3)
    assert torch.equal(gradient, step(fresh, 1e-3))
    assert torch.cosine_similarity(gradient, step(plain, 1e-3), dim=0) > 0.9999


async def test_a_base_in_four_bits_is_sampled_as_it_is_trained(wide, tmp_path):
    async with registered(tmp_path, a_model(base_model=wide, policy=FOUR_BITS)) as (model, _):
        metrics = (await model.train([await a_group(model, [0.0, 1.0])], TrainConfig(learning_rate=1e-3))).metrics
    assert max(metrics["publish_gap"], metrics["logprob_drift"]) < 1e-3
    assert metrics["gradient_norm"] > 0


@pytest.mark.parametrize(
    ("settings", "device", "error", "remedy"),
    [
        (FOUR_BITS, "cpu", BaseModelError, "pip install bitsandbytes"),
        (UNSLOTH, "cuda", BaseModelError, install_line("gpu")),
        (PolicySettings(use_liger_kernel=True), "cpu", LigerError, "use_liger_kernel"),
        (PolicySettings(use_liger_kernel=True), "cuda", LigerError, "pip install liger-kernel"),
    ],
)
def test_what_is_not_installed_or_needs_a_gpu_is_an_error_that_says_so(monkeypatch, settings, device, error, remedy):
    monkeypatch.setattr(policy_room, "_device", lambda: device)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "unsloth", None)
    loads = Mock(side_effect=AssertionError("the base is loaded")) if settings.use_liger_kernel else None
    with pytest.raises(error) as raised:
        Policy(EMBEDDED_POLICY, LORA, settings=settings, load=loads)
    assert remedy in raised.value.remedy


class FastLanguageModel:
    """Unsloth's loader as far as it is documented, over transformers and PEFT, on the CPU."""

    asked: list[dict[str, Any]]

    @classmethod
    def from_pretrained(cls, model_name: str, dtype: torch.dtype, **settings: Any) -> tuple[Any, None]:
        cls.asked.append({"model_name": model_name, "dtype": dtype, **settings})
        return AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype), None

    @classmethod
    def get_peft_model(cls, model: Any, *, r: int, target_modules: list[str], random_state: int, **settings: Any):
        cls.asked.append({"r": r, "target_modules": target_modules, **settings})
        torch.manual_seed(random_state)
        config = LoraConfig(
            r=r, lora_alpha=settings["lora_alpha"], target_modules=target_modules, task_type="CAUSAL_LM"
        )
        return get_peft_model(model, config)


@pytest.fixture
def fake_unsloth(monkeypatch) -> list[dict[str, Any]]:
    module = ModuleType("unsloth")
    module.FastLanguageModel = FastLanguageModel
    FastLanguageModel.asked = []
    monkeypatch.setitem(sys.modules, "unsloth", module)
    monkeypatch.setattr(policy_room, "_device", lambda: "cuda")
    return FastLanguageModel.asked


def test_unsloth_makes_the_same_base_and_adapter_which_score_and_learn_as_pefts(policy, fresh_policy, fake_unsloth):
    theirs = Policy(EMBEDDED_POLICY, LORA, settings=UNSLOTH)
    loaded, adapted = fake_unsloth
    assert (loaded["model_name"], loaded["dtype"]) == (str(EMBEDDED_PATH), torch.float32)
    assert (loaded["load_in_4bit"], loaded["use_exact_model_name"]) == (False, True)
    assert loaded["max_seq_length"] == theirs.max_context
    assert (adapted["r"], adapted["lora_alpha"], adapted["lora_dropout"]) == (4, LORA.alpha, 0.0)
    assert theirs.spans is None
    assert torch.allclose(learned(theirs), learned(policy), atol=1e-4)
    ours = step(fresh_policy, 1e-3)
    assert torch.cosine_similarity(step(theirs, 1e-3), ours, dim=0) > 0.9999
    assert torch.allclose(learned(theirs), learned(fresh_policy), atol=1e-2)


@pytest.mark.parametrize(
    ("settings", "device", "sharded", "installed", "used"),
    [
        ({}, "cuda", False, True, True),
        ({}, "cuda", False, False, False),
        ({}, "cpu", False, True, False),
        ({}, "cuda", True, True, False),
        ({"loader": "unsloth"}, "cuda", False, True, False),
        ({"quantization": "4bit"}, "cuda", False, True, False),
        ({"quantization": "4bit", "use_liger_kernel": True}, "cuda", False, True, True),
        ({"use_liger_kernel": False}, "cuda", False, True, False),
    ],
)
def test_they_are_used_where_they_can_run_unless_it_is_said(monkeypatch, settings, device, sharded, installed, used):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed or None)
    assert liger_is_used(PolicySettings(**settings), device, sharded) is used
