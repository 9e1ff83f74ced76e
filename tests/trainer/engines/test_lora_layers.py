"""In coarse precision the sampler follows small updates as the learner does, because nothing is merged."""

import pytest
import torch

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.passes import set_factors
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy, load_base
from tests.trainer.conftest import sequence

IDS = [(7 * n) % 800 for n in range(120)]
TEXT = sequence(IDS[:1], IDS[1:], [0.0] * (len(IDS) - 1))


@pytest.fixture
def coarse() -> Policy:
    """A policy as it is on a GPU: the base in bf16, the adapter in fp32."""
    return Policy(EMBEDDED_POLICY, LoraSettings(rank=4), settings=PolicySettings(dtype="bfloat16"))


@pytest.fixture
def engine(coarse):
    running = TransformersEngine(load_base(EMBEDDED_POLICY, torch.bfloat16, "cpu"), slots=4, max_context=256)
    running.publish(coarse, 0)
    yield running
    running.close()


def learned(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return trained_logprobs(policy, [TEXT])


def update(policy: Policy, rate: float) -> None:
    """A step towards higher log-probs, as large for every parameter as Adam's first."""
    trained_logprobs(policy, [TEXT]).mean().backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            assert parameter.grad is not None
            parameter.add_(rate * parameter.grad.sign())
            parameter.grad = None


def test_a_small_update_moves_the_sampler_as_it_moves_the_learner(coarse, engine):
    before, served_before = learned(coarse), torch.tensor(engine.score(IDS))
    plain = dict(load_base(EMBEDDED_POLICY, torch.bfloat16, "cpu").named_parameters())
    update(coarse, 1e-4)
    engine.publish(coarse, 1)
    unmoved = [(weight == plain[name]).float().mean().item() for name, weight in coarse.merged_weights()]
    assert min(unmoved) > 0.5, "merged into bf16, most weights would not notice such an update"
    moved, served_moved = learned(coarse) - before, torch.tensor(engine.score(IDS)) - served_before
    assert moved.mean() > 0.1
    assert served_moved.mean().item() == pytest.approx(moved.mean().item(), rel=0.1)


def test_in_coarse_precision_a_layer_of_the_sampler_rounds_as_the_learners_does(coarse):
    update(coarse, 0.01)
    base = load_base(EMBEDDED_POLICY, torch.bfloat16, "cpu")
    set_factors(base, coarse.factors())
    torch.manual_seed(0)
    for each in coarse.factors():
        layer = coarse.model.get_base_model().get_submodule(each.layer)
        x = torch.randn(2, 5, layer.in_features, dtype=torch.bfloat16)
        assert torch.equal(base.get_submodule(each.layer)(x), layer(x))


def test_in_coarse_precision_the_sampler_scores_as_the_learner_does(coarse, engine):
    update(coarse, 0.01)
    engine.publish(coarse, 1)
    gaps = (learned(coarse) - torch.tensor(engine.score(IDS))).abs()
    assert gaps.mean() < 0.0125
    assert gaps.max() < 0.05
