"""Adapters that a policy begins with, is compared with, or is merged with."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from gavel.trainer.config import LoraSettings, PolicySettings, SftConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.policy import merged_model
from gavel.trainer.policy.adapters import (
    check_adapter,
    reference_weights,
    start_from,
)
from gavel.trainer.policy.loading import BaseModelError, adapter_base, auto_class, plain_logits
from gavel.trainer.policy.lora_layers import expert_targets, lora_targets
from gavel.trainer.policy.merged_model import ExportError, write_merged
from gavel.trainer.policy.policy import Policy
from tests.trainer.conftest import a_group, registered, stirred, tiny_model
from tests.trainer.families import BY_NAME, FAMILIES, Family

pytestmark = pytest.mark.slow


def moved(**lora: object) -> Policy:
    return stirred(Policy(EMBEDDED_POLICY, LoraSettings.model_validate(lora)), seed=2)


@pytest.mark.parametrize("reference", ["start", "1", "path"])
async def test_a_reference_is_the_state_that_it_names_also_after_a_restart(tmp_path: Path, reference: str) -> None:
    """Supervised steps first: the divergence from the state after them is 0 in the first step, from the base not."""
    config = TrainConfig(learning_rate=1e-2, beta=0.1, kl_estimator="k3")
    checkpoints = tmp_path / "tests" / "tuned" / "checkpoints"
    async with registered(tmp_path, "tuned") as (model, backend):
        recorded = await a_group(model, [0.0, 1.0, 0.5])
        await model.train_sft([recorded.trajectories[1]], SftConfig(learning_rate=1e-2))
        named = str(checkpoints / "000001") if reference == "path" else reference
        from_it = config.model_copy(update={"reference": named})
        first = (await model.train([recorded], from_it)).metrics["kl"]
        await model.delete_checkpoints()
        second = (await model.train([recorded], from_it)).metrics["kl"]
    assert first == pytest.approx(0, abs=1e-5)
    assert second > 1e-3
    async with registered(tmp_path, "tuned") as (again, backend):
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
    with pytest.raises(BaseModelError, match="does not fit") as error:
        reference_weights(policy, tmp_path / "wide")
    assert "same rank" in error.value.remedy
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "wide").rename(tmp_path / "run" / "checkpoints" / "000003")
    with pytest.raises(BaseModelError, match="no directory of an adapter") as error:
        check_adapter(tmp_path / "run")
    assert "000003" in error.value.remedy
    (tmp_path / "run" / "checkpoints" / "000003" / "adapter_config.json").write_text(json.dumps({"r": "x"}))
    with pytest.raises(BaseModelError, match="cannot be read"):
        reference_weights(policy, tmp_path / "run" / "checkpoints" / "000003")


def test_an_adapter_whose_weights_are_not_finite_is_refused(tmp_path: Path) -> None:
    policy = Policy(EMBEDDED_POLICY, LoraSettings())
    with torch.no_grad():
        policy.parameters()[0][0, 0] = torch.inf
    policy.save_adapter(tmp_path)
    assert adapter_base(tmp_path) == str(EMBEDDED_PATH)
    with pytest.raises(BaseModelError, match="not finite"):
        start_from(Policy(EMBEDDED_POLICY, LoraSettings()), tmp_path)


IDS = [[5, 9, 31, 7, 7, 12, 40, 3, 18, 22, 64, 2, 90, 11]]
NATS = {torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 0.05}
"""Tolerances of the docs, per dtype, for log-probs of the tiny models here."""


def logprobs(model: Any) -> torch.Tensor:
    ids = torch.tensor(IDS)
    with torch.inference_mode():
        found = plain_logits(model, ids)[0, :-1].float().log_softmax(-1)
    return found.gather(-1, ids[0, 1:, None])[:, 0]


@pytest.fixture
def trained(tmp_path, policy):
    """Writes a family's base and a checkpoint over it; returns the adapted model."""

    def make(family: Family, *, experts: bool = False) -> Any:
        base = family.model()
        base.save_pretrained(tmp_path / "base")
        policy.tokenizer.save_pretrained(tmp_path / "base")
        own = auto_class(family.read_config()).from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
        lora = LoraConfig(r=2, lora_alpha=4, target_modules=lora_targets(own), task_type="CAUSAL_LM")
        lora.target_parameters = expert_targets(own) if experts else None
        adapted = stirred(get_peft_model(own, lora)).eval()
        adapted.save_pretrained(tmp_path / "checkpoint")
        return adapted

    return make


MERGED = [
    *(pytest.param(each, False, torch.float32, id=each.name) for each in FAMILIES),
    *(pytest.param(each, True, torch.float32, id=f"{each.name} with experts") for each in FAMILIES if each.experts),
    *(
        pytest.param(BY_NAME[name], False, dtype, id=f"{name} {dtype}")
        for name in ("SmolLM2", "Gemma 2", "GPT-OSS")
        for dtype in (torch.bfloat16, torch.float16)
    ),
]


@pytest.mark.parametrize(("family", "experts", "dtype"), MERGED)
def test_a_merged_family_has_the_log_probs_of_base_and_adapter(family, experts, dtype, trained, tmp_path):
    expected = logprobs(trained(family, experts=experts))
    out = tmp_path / "out"
    gap = write_merged(str(tmp_path / "base"), PolicySettings(), tmp_path / "checkpoint", out, dtype)
    again: Any = auto_class(family.read_config()).from_pretrained(out, dtype="auto").eval()
    assert again.dtype == dtype
    assert gap < merged_model._TOLERANCE[dtype]
    torch.testing.assert_close(logprobs(again), expected, atol=NATS[dtype], rtol=0)
    assert not [file for file in out.iterdir() if "adapter" in file.name]


def test_the_directory_has_all_that_serving_needs(tmp_path):
    write_merged(EMBEDDED_POLICY, PolicySettings(), None, tmp_path / "out", torch.float32)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", EMBEDDED_PATH))
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template


def test_a_merge_that_comes_out_wrong_is_no_export(monkeypatch, fresh_policy, tmp_path):
    stirred(fresh_policy)
    fresh_policy.save_adapter(tmp_path / "checkpoint")
    monkeypatch.setattr(merged_model, "_merge", lambda *_: None)
    with pytest.raises(ExportError, match="nats"):
        write_merged(EMBEDDED_POLICY, PolicySettings(), tmp_path / "checkpoint", tmp_path / "out", torch.float32)
    assert not (tmp_path / "out").exists()


def test_the_export_of_a_4bit_base_has_the_weights_that_the_policy_computed_with(tmp_path, policy):
    pytest.importorskip("bitsandbytes")
    wide = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.02}
    tiny_model(vocab_size=832, **wide).save_pretrained(tmp_path / "base")
    policy.tokenizer.save_pretrained(tmp_path / "base")
    settings = PolicySettings(quantization="4bit")
    own = Policy(str(tmp_path / "base"), LoraSettings(rank=2), "qwen3", settings)
    stirred(own)
    own.save_adapter(tmp_path / "checkpoint")
    expected = logprobs(own.model)
    write_merged(str(tmp_path / "base"), settings, tmp_path / "checkpoint", tmp_path / "out", torch.float32)
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()
    torch.testing.assert_close(logprobs(merged), expected, atol=1e-3, rtol=0)
