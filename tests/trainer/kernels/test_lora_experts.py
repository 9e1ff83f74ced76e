"""LoRA over stacked experts against PEFT's own forward, which makes the adapted weights of all experts."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import ParamWrapper

from gavel.trainer.engines.passes import AdaptedExperts, set_factors
from gavel.trainer.kernels.fused_layers import LoraExperts, compute_experts
from gavel.trainer.policy.adapters import adapted_weights
from tests.trainer.conftest import stirred
from tests.trainer.families import BY_NAME

TARGETS = ["experts.gate_up_proj", "experts.down_proj"]
FORMS = {"Qwen3-MoE": "plain", "GPT-OSS": "transposed, with biases, gate and up by turns", "PhiMoE": "top 2"}


def adapted(name: str, rank: int = 2) -> Any:
    """A model of the family whose experts have factors that are not zero."""
    base = BY_NAME[name].model()
    return stirred(get_peft_model(base, LoraConfig(r=rank, target_modules=[], target_parameters=TARGETS)).eval(), 0.3)


def routed(tokens: int) -> tuple[torch.Tensor, ...]:
    """Hidden states, each token's experts and their shares."""
    torch.manual_seed(tokens)
    return torch.randn(tokens, 32), torch.rand(tokens, 4).topk(2).indices, torch.rand(tokens, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
@torch.no_grad()
def test_the_sampler_rounds_as_the_learner_does(name, dtype):
    model = adapted(name)
    plain = BY_NAME[name].model().to(dtype)
    for module in model.modules():
        if isinstance(module, ParamWrapper) and not isinstance(module.base_layer, ParamWrapper):
            module.base_layer.to(dtype)  # the factors stay in float32, as a policy has them
    compute_experts(model)
    set_factors(plain, [each.factors() for each in adapted_weights(model.get_base_model())])
    served = [module for module in plain.modules() if isinstance(module, AdaptedExperts)]
    learned = [module for module in model.modules() if type(module) is LoraExperts]
    assert len(served) == len(learned) > 0
    x, chosen, shares = routed(9)
    for one, other in zip(served, learned, strict=True):
        given = x.to(dtype), chosen, shares.to(dtype)
        assert torch.equal(one(*given), other(*given))
    set_factors(plain, [])
    assert torch.equal(served[0](*given), learned[0].get_base_layer()(*given))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", FORMS)
def test_on_a_gpu_in_bfloat16_values_and_gradients_are_pefts_within_its_rounding(name):
    model = adapted(name, 5).cuda()
    own = next(module for module in model.modules() if isinstance(module, ParamWrapper))
    other = copy.deepcopy(own)  # PEFT's eager view of the same weights
    compute_experts(model)
    assert (type(own), type(other)) == (LoraExperts, ParamWrapper)
    other.get_base_layer().config = copy.deepcopy(other.get_base_layer().config)
    other.get_base_layer().config._experts_implementation = "eager"
    own.get_base_layer().bfloat16()  # the factors stay in float32
    x, chosen, shares = (each.cuda() for each in routed(64))
    found, expected = own(x.bfloat16(), chosen, shares.bfloat16()), other(x, chosen, shares)
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()
    gradients = [
        torch.autograd.grad(y.float().square().sum(), [p for p in layer.parameters() if p.requires_grad])
        for layer, y in ((own, found), (other, expected))
    ]
    for mine, theirs in zip(*gradients, strict=True):
        assert (mine - theirs).norm() < 0.1 * theirs.norm()
