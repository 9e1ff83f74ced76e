"""Liger's kernels against our own: on a CPU by Triton's interpreter (`make test-liger`), on a GPU as they are compiled.

In float32 the two differ by the order of sums, a few units in the last place of each layer. In bfloat16 each rounds
intermediate results at other places, so the measure is the distance from the float32 value: Liger's norms and RoPE
round once, and the whole may be no further from it than our own is, but for chance.
"""

import os
from typing import Any

import pytest
import torch
from peft import PeftModel

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.kernels.fused_layers import fuse_mlps, fuse_norms
from gavel.trainer.kernels.liger import LigerError, use_liger
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy import policy as policies
from gavel.trainer.policy.lora_layers import add_adapter
from gavel.trainer.policy.policy import Policy
from tests.trainer.conftest import gradient_of, sequence
from tests.trainer.families import BY_NAME, Family
from tests.trainer.kernels.triton_interpreter import compile_like

pytestmark = [pytest.mark.slow, pytest.mark.liger]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TAKEN = {  # of two layers
    "Llama 3": (5, 2, 2),
    "SmolLM3": (5, 2, 2),
    "Qwen3": (9, 2, 2),
    "OLMo 2": (9, 2, 2),
    "Phi 3, Phi 4": (5, 2, 0),  # gate and up are one layer
    "Gemma 3": (14, 2, 0),  # norms with weight + 1, one of what reads images; its MLP has another activation
    "Cohere": (0, 0, 2),  # LayerNorm, interleaved RoPE
    "Qwen3-MoE": (9, 2, 0),
}
IDS = (7 * torch.arange(6) % 800 + 3)[None]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("liger_kernel", reason="make test-liger installs liger-kernel")
    if INTERPRETED:
        compile_like(monkeypatch)
    elif not torch.cuda.is_available():
        pytest.skip("needs a GPU, or Triton's interpreter (make test-liger)")
    return "cpu" if INTERPRETED else "cuda"


def learner_model(name: str, dtype: torch.dtype, device: str, *, with_liger: bool) -> tuple[PeftModel, dict[str, int]]:
    """A model as the learner makes it of its base."""
    base = BY_NAME[name].model().to(device=device, dtype=dtype)
    fuse_norms(base)
    fuse_mlps(base)
    found = use_liger(base) if with_liger else {}
    model = add_adapter(base, LoraSettings(rank=2)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape))
    return model, found


def results(model: Any) -> list[torch.Tensor]:
    """Hidden states, and the gradients of the adapter."""
    hidden = model.get_base_model().get_decoder()(input_ids=IDS.to(model.device), use_cache=False).last_hidden_state
    (hidden.float() * torch.linspace(-1, 2, hidden.shape[-1], device=hidden.device)).sum().backward()
    return [hidden.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def distance(found: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    """Of the hidden states and of all gradients together, as a share of their length."""
    pairs = [(found[0], truth[0]), tuple(torch.cat([g.flatten() for g in each[1:]]) for each in (found, truth))]
    return max(float((one.float() - two).norm() / two.norm()) for one, two in pairs)


@pytest.mark.parametrize("name", TAKEN)
def test_values_and_gradients_of_a_family_are_the_same(name, device):
    model, found = learner_model(name, torch.float32, device, with_liger=True)
    assert tuple(found.values()) == TAKEN[name]
    plain = results(learner_model(name, torch.float32, device, with_liger=False)[0])
    assert len(plain) > 8
    assert distance(results(model), plain) < 1e-5


@pytest.mark.parametrize("name", ["Qwen3", "Gemma 3"])
def test_bfloat16_is_no_further_from_float32_than_our_own_kernels(name, device):
    halves = [learner_model(name, torch.bfloat16, device, with_liger=each)[0] for each in (True, False)]
    precise, _ = learner_model(name, torch.float32, device, with_liger=False)
    rounded = dict(halves[1].named_parameters())
    with torch.no_grad():
        for key, parameter in precise.named_parameters():
            parameter.copy_(rounded[key])
    truth = results(precise)
    with_liger, own = (distance(results(each), truth) for each in halves)
    assert with_liger < 1.5 * own


def test_layers_in_four_bits_have_the_activation_too(device):
    """Layers of another class keep their own products."""

    class Linear(torch.nn.Linear):
        pass

    base: Any = BY_NAME["Llama 3"].model().to(device)
    for layer in base.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).__class__ = Linear
    hidden = torch.randn(1, 5, 32, device=device)
    before = base.model.layers[0].mlp(hidden)
    assert fuse_mlps(base) == 0
    assert use_liger(base)["mlps"] == 2
    assert torch.allclose(base.model.layers[0].mlp(hidden), before, atol=1e-5)


def test_a_second_backward_pass_fails_instead_of_being_wrong(device):
    model, _ = learner_model("Llama 3", torch.float32, device, with_liger=True)
    base: Any = model.get_base_model()
    mlp = base.model.layers[0].mlp
    result = mlp(torch.randn(1, 5, 32, device=device, requires_grad=True)).sum()
    result.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace operation"):
        result.backward()


def test_a_model_of_which_nothing_is_taken_is_refused(device):
    model = Family("GPT-2", "gpt2").model().to(device)
    with pytest.raises(LigerError, match="nothing of gpt2"):
        use_liger(model)
    assert not any(use_liger(model, least=False).values())


def test_a_policy_learns_the_same_over_shared_prefixes_and_its_sampler_is_as_it_was(device, monkeypatch):
    monkeypatch.setattr(policies, "liger_is_used", lambda settings, *_: bool(settings.use_liger_kernel))
    settings = PolicySettings(dtype="float32")
    own, other = (
        Policy(EMBEDDED_POLICY, LoraSettings(rank=4), settings=each)
        for each in (settings, settings.model_copy(update={"use_liger_kernel": True}))
    )
    other.set_adapter_weights(own.adapter_weights())
    prompt = [7, 14, 21]
    batch = [sequence(prompt, [28, 35], [-1.0] * 2), sequence(prompt, [42], [-1.0], 0.8)]
    gradients = []
    for policy in (own, other):
        policy.checkpoint_gradients(True)
        trained_logprobs(policy, batch).sum().backward()
        gradients.append(gradient_of(policy))
    with torch.no_grad():
        assert torch.allclose(trained_logprobs(own, batch), trained_logprobs(other, batch), atol=1e-5)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)
    assert gradients[0].abs().max() > 1e-2

    def parts(model: Any) -> set[str]:
        return {type(each).__name__ for each in model.modules() if "forward" in vars(each)}

    assert len(parts(other.decoder())) > 2
    assert not parts(other.plain_model())
    ids = IDS.to(other.device)
    with torch.no_grad():
        assert torch.equal(*(policy.plain_model()(ids).logits for policy in (own, other)))
