"""The reference of a divergence: kept with the run, equal to the state that it names, refused when it does not fit."""

import json
from pathlib import Path

import pytest
import torch

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoraSettings, SftConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.policy import Policy
from gavel.trainer.policy.reference import ReferencePolicyError, check_adapter, reference_weights
from tests.trainer.backends.test_local import a_group

pytestmark = pytest.mark.slow


def a_model(name: str, **lora: int) -> TrainableModel:
    return TrainableModel(name=name, project="tests", base_model=EMBEDDED_POLICY, lora=LoraSettings(**lora))


def moved(**lora: object) -> Policy:
    policy = Policy(EMBEDDED_POLICY, LoraSettings.model_validate(lora))
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


@pytest.mark.parametrize("reference", ["start", "1", "path"])
async def test_a_reference_is_the_state_that_it_names_also_after_a_restart(tmp_path: Path, reference: str) -> None:
    """Supervised steps first: the divergence from the state after them is 0 in the first step, from the base not."""
    model = a_model("tuned")
    config = TrainConfig(learning_rate=1e-2, beta=0.1, kl_estimator="k3")
    checkpoints = tmp_path / "tests" / "tuned" / "checkpoints"
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        recorded = await a_group(model, [0.0, 1.0, 0.5])
        await model.train_sft([recorded.trajectories[1]], SftConfig(learning_rate=1e-2))
        named = str(checkpoints / "000001") if reference == "path" else reference
        from_it = config.model_copy(update={"reference": named})
        first = (await model.train([recorded], from_it)).metrics["kl"]
        await model.delete_checkpoints()
        second = (await model.train([recorded], from_it)).metrics["kl"]
    assert first == pytest.approx(0, abs=1e-5)
    assert second > 1e-3
    again = a_model("tuned")
    async with LocalBackend(tmp_path) as backend:
        await again.register(backend)
        assert 1 not in backend.checkpoints(again)
        third = (await again.train([recorded], from_it)).metrics["kl"]
        base = (await again.train([recorded], config)).metrics["kl"]
        back = (await again.train([recorded], from_it)).metrics["kl"]
    assert third > 1e-3
    assert min(base, back) > 1e-3
    assert base != pytest.approx(back, rel=1e-3)


def test_another_scale_and_fewer_layers_of_a_reference_are_the_same_function(tmp_path: Path) -> None:
    other, own = moved(rank=4, alpha=8), Policy(EMBEDDED_POLICY, LoraSettings(rank=4, alpha=32))
    other.save_adapter(tmp_path)
    weights = reference_weights(own, tmp_path)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        expected, base = other.model(input_ids=ids).logits, own.model(input_ids=ids).logits
        with own.with_weights(weights):
            found = own.model(input_ids=ids).logits
        after = own.model(input_ids=ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(base, expected, atol=1e-2)
    assert torch.equal(base, after)


def test_a_reference_that_does_not_fit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    moved(rank=8).save_adapter(tmp_path / "wide")
    policy = Policy(EMBEDDED_POLICY, LoraSettings(rank=4))
    with pytest.raises(ReferencePolicyError, match="does not fit") as error:
        reference_weights(policy, tmp_path / "wide")
    assert "same rank" in error.value.remedy
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "wide").rename(tmp_path / "run" / "checkpoints" / "000003")
    with pytest.raises(ReferencePolicyError, match="no directory of an adapter") as error:
        check_adapter(tmp_path / "run")
    assert "000003" in error.value.remedy
    (tmp_path / "run" / "checkpoints" / "000003" / "adapter_config.json").write_text(json.dumps({"r": "x"}))
    with pytest.raises(ReferencePolicyError, match="cannot be read"):
        reference_weights(policy, tmp_path / "run" / "checkpoints" / "000003")


@pytest.mark.parametrize("reference", ["7", "nowhere"])
async def test_a_reference_that_is_not_there_stops_a_run_before_its_first_rollout(
    tmp_path: Path, reference: str
) -> None:
    model = a_model("lost")
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        with pytest.raises(ReferencePolicyError) as error:
            await backend.prepare(model, TrainConfig(beta=0.1, reference=reference))
    assert "'start'" in error.value.remedy
