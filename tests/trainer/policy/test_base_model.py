"""Which base models can be loaded and adapted; adapters that a policy begins with, is compared or merged with."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from gavel.trainer.config import LoraSettings, PolicySettings, SftConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.policy import merged_model
from gavel.trainer.policy.adapters import check_adapter, reference_weights, start_from
from gavel.trainer.policy.loading import BaseModelError, adapter_base, auto_class
from gavel.trainer.policy.lora_layers import expert_targets, lora_targets
from gavel.trainer.policy.merged_model import ExportError, write_merged
from gavel.trainer.policy.policy import Policy, load_base, load_config
from tests.trainer.conftest import a_group, registered, sequence, stirred, tiny_model
from tests.trainer.families import BY_NAME, FAMILIES, Family
from tests.trainer.test_families import plain_logprobs

pytestmark = pytest.mark.slow


LORA = LoraSettings(rank=4)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def adapted(fresh_policy):
    return stirred(fresh_policy)


@pytest.fixture
def own_directory(tmp_path, policy):
    """A base model of the user's own, with a tokenizer that fits."""
    tiny_model(vocab_size=832).save_pretrained(tmp_path / "own")
    policy.tokenizer.save_pretrained(tmp_path / "own")
    return tmp_path / "own"


def all_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers for an attribute it has renamed
def test_a_saved_adapter_is_one_that_peft_loads_by_itself(adapted, tmp_path):
    adapted.save_adapter(tmp_path)
    assert all("lora_" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    theirs = PeftModel.from_pretrained(load_base(EMBEDDED_POLICY, adapted.dtype, "cpu"), str(tmp_path)).eval()
    ids = torch.tensor([[1, 5, 9, 200]])
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=ids).logits, adapted.model(input_ids=ids).logits)
    other = Policy(EMBEDDED_POLICY, LoraSettings(rank=4, seed=5))
    assert not all_equal(adapted.adapter_weights(), other.adapter_weights())
    other.load_adapter(tmp_path)
    assert all_equal(adapted.adapter_weights(), other.adapter_weights())
    assert all(parameter.requires_grad for parameter in other.parameters())


@pytest.mark.parametrize(("rank", "left_out", "told"), [(2, 0, "does not fit"), (4, 1, "only this run has")])
def test_an_adapter_of_another_shape_or_without_a_layer_is_refused(adapted, tmp_path, rank, left_out, told):
    Policy(EMBEDDED_POLICY, LoraSettings(rank=rank)).save_adapter(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    save_file(dict(list(load_file(file).items())[left_out:]), file)
    before = adapted.adapter_weights()
    with pytest.raises(BaseModelError, match=told) as error:
        adapted.load_adapter(tmp_path)
    assert error.value.remedy
    assert all_equal(before, adapted.adapter_weights())


@pytest.mark.parametrize("name", ["nobody/has-this-model", "./no/such/directory", "not a name at all"])
def test_a_base_model_that_does_not_exist_is_an_error_that_names_it(name):
    with pytest.raises(BaseModelError, match="cannot be loaded") as error:
        Policy(name, LORA)
    assert repr(name) in error.value.message
    assert EMBEDDED_POLICY in error.value.remedy


@pytest.mark.parametrize(("value", "told"), [(None, "lack the weight {}"), (torch.nan, "{} of .* is not finite")])
def test_a_weight_that_is_missing_or_not_finite_is_named(own_directory, value, told):
    weights = load_file(own_directory / "model.safetensors")
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    if value is None:
        del weights[name]
    else:
        weights[name][0, 0] = value
    save_file(weights, own_directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(BaseModelError, match=told.format(re.escape(name))):
        Policy(str(own_directory), LORA, renderer="qwen3")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"dtype": "bf16"}, "no attribute 'bf16'"),
        ({"rope_parameters": {"rope_type": "banana", "rope_theta": 1e4}}, "RoPE of type 'banana'"),
        pytest.param(
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantized in a form that needs more",
            marks=pytest.mark.skipif(find_spec("optimum") is not None, reason="optimum is here and reads this form"),
        ),
    ],
)
def test_what_transformers_cannot_make_of_a_config_is_told_in_a_sentence(own_directory, fields, told):
    config = own_directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    with pytest.raises(BaseModelError, match=told) as error:
        Policy(str(own_directory), LORA, renderer="qwen3")
    assert error.value.remedy


def test_a_tokenizer_with_more_tokens_than_the_model_is_an_error_that_names_both(own_directory):
    tiny_model(vocab_size=64).save_pretrained(own_directory)
    with pytest.raises(BaseModelError, match=r"does not fit the model: it needs \d+ tokens, the model has 64"):
        Policy(str(own_directory), LORA)


def test_a_base_larger_than_memory_is_refused_without_its_weights(tmp_path: Path, policy: Policy) -> None:
    AutoConfig.for_model("qwen3", hidden_size=16384, intermediate_size=65536, num_hidden_layers=90).save_pretrained(
        tmp_path
    )
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BaseModelError, match=r"take [\d.]{5,} GiB in bfloat16, and [\d.]+ GiB") as error:
        Policy(str(tmp_path), LoraSettings(), "qwen3", PolicySettings(dtype="bfloat16"))
    assert f"gavel plan {tmp_path}" in error.value.remedy
    assert "policy.dtype" not in error.value.remedy


def refused(name: str) -> BaseModelError:
    with pytest.raises(BaseModelError) as error:
        load_config(name)
    assert error.value.remedy
    return error.value


def test_what_is_no_base_model_names_what_is_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-8B"}))
    error = refused(str(tmp_path))
    assert ("adapter" in error.message, "Qwen/Qwen3-8B" in error.remedy) == (True, True)
    for scheme in ("https://huggingface.co", "hf:/"):
        assert refused(f"{scheme}/Qwen/Qwen3-8B").remedy.endswith(" Qwen/Qwen3-8B")
    (tmp_path / "quantized").mkdir()
    file = tmp_path / "quantized" / "model-q4.gguf"
    file.write_bytes(b"GGUF")
    assert all("GGUF" in refused(str(name)).message for name in (file, file.parent))


def test_code_that_a_model_brings_is_not_run_and_nothing_is_asked(tmp_path, monkeypatch):
    def ask(*_: object) -> str:
        raise AssertionError("it asks at the terminal")

    monkeypatch.setattr("builtins.input", ask)
    config = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "configuration_own.py").write_text("raise AssertionError('it was run')\n")
    assert "code of its own" in refused(str(tmp_path)).message


def targets_of(family: Family, wanted=()) -> list[str]:
    with torch.device("meta"):
        return lora_targets(AutoModelForCausalLM.from_config(family.read_config()), wanted)


def test_layers_that_are_asked_for_are_the_only_ones_and_none_that_would_be_read_as_another_is_adapted():
    def targets(*wanted: str) -> list[str]:
        return targets_of(BY_NAME["Qwen3"], wanted)

    assert targets("q_proj", "v_proj") == ["q_proj", "v_proj"]
    assert targets("self_attn.q_proj") == ["q_proj"]
    assert targets("layers.1.self_attn.q_proj") == ["model.layers.1.self_attn.q_proj"]
    laguna = Family("Laguna", "laguna")
    assert not [name for name in targets_of(laguna) if "shared_experts" in name]
    with pytest.raises(BaseModelError, match="that of another layer"):
        targets_of(laguna, ["shared_experts.up_proj"])


@pytest.mark.parametrize(
    ("name", "wanted", "reason"),
    [
        ("Qwen3-MoE", "experts", "one tensor for all of them"),
        ("Qwen3-MoE", "experts.down_proj", "one tensor for all of them"),
        ("Qwen3-MoE", "mlp.gate", "must choose the same experts"),
        ("Qwen3-MoE", "lm_head", "the vocabulary head is frozen"),
        ("Qwen3-MoE", "input_layernorm", "no linear layer of the text decoder"),
        ("Mixtral", "gate", "must choose the same experts"),
        ("Qwen3", "nowhere", "no layer 'nowhere'"),
        ("Qwen3", "proj", "no layer 'proj'"),
    ],
)
def test_a_part_that_cannot_be_adapted_is_refused_with_the_reason(name, wanted, reason):
    with pytest.raises(BaseModelError, match=reason) as error:
        targets_of(BY_NAME[name], [wanted])
    assert "k_proj, o_proj, q_proj" in error.value.remedy


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
    other, own = (Policy(EMBEDDED_POLICY, LoraSettings(rank=4, alpha=alpha)) for alpha in (8, 32))
    stirred(other).save_adapter(tmp_path)
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


def test_a_reference_that_does_not_fit_and_a_start_that_is_not_finite_are_refused_with_what_to_do(tmp_path: Path):
    Policy(EMBEDDED_POLICY, LoraSettings(rank=8)).save_adapter(tmp_path / "wide")
    policy = Policy(EMBEDDED_POLICY, LORA)
    with pytest.raises(BaseModelError, match="does not fit"):
        reference_weights(policy, tmp_path / "wide")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "wide").rename(tmp_path / "run" / "checkpoints" / "000003")
    with pytest.raises(BaseModelError, match="no directory of an adapter") as error:
        check_adapter(tmp_path / "run")
    assert "000003" in error.value.remedy
    (tmp_path / "run" / "checkpoints" / "000003" / "adapter_config.json").write_text(json.dumps({"r": "x"}))
    with pytest.raises(BaseModelError, match="cannot be read"):
        reference_weights(policy, tmp_path / "run" / "checkpoints" / "000003")
    with torch.no_grad():
        policy.parameters()[0][0, 0] = torch.inf
    policy.save_adapter(tmp_path)
    assert adapter_base(tmp_path) == str(EMBEDDED_PATH)
    with pytest.raises(BaseModelError, match="not finite"):
        start_from(Policy(EMBEDDED_POLICY, LORA), tmp_path)


TEXT = sequence([5], [9, 31, 7, 7, 12, 40, 3, 18, 22, 64, 2, 90, 11], [0.0] * 13)
NATS = {torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 0.05}
"""Tolerances of the docs, per dtype, for log-probs of the tiny models here."""


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
@torch.no_grad()
def test_a_merged_family_has_the_log_probs_of_base_and_adapter(family, experts, dtype, policy, tmp_path):
    base, out = tmp_path / "base", tmp_path / "out"
    family.model().save_pretrained(base)
    policy.tokenizer.save_pretrained(base)
    own = auto_class(family.read_config()).from_pretrained(base, dtype=torch.float32).eval()
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=lora_targets(own), task_type="CAUSAL_LM")
    lora.target_parameters = expert_targets(own) if experts else None
    adapted: Any = stirred(get_peft_model(own, lora)).eval()
    adapted.save_pretrained(tmp_path / "checkpoint")
    gap = write_merged(str(base), PolicySettings(), tmp_path / "checkpoint", out, dtype)
    again: Any = auto_class(family.read_config()).from_pretrained(out, dtype="auto").eval()
    assert again.dtype == dtype
    assert gap < merged_model._TOLERANCE[dtype]
    torch.testing.assert_close(plain_logprobs(again, TEXT), plain_logprobs(adapted, TEXT), atol=NATS[dtype], rtol=0)
    assert not [file for file in out.iterdir() if "adapter" in file.name]


def test_a_merge_that_comes_out_wrong_is_no_export(monkeypatch, adapted, tmp_path):
    adapted.save_adapter(tmp_path / "checkpoint")
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
    own = stirred(Policy(str(tmp_path / "base"), LoraSettings(rank=2), "qwen3", settings))
    own.save_adapter(tmp_path / "checkpoint")
    write_merged(str(tmp_path / "base"), settings, tmp_path / "checkpoint", tmp_path / "out", torch.float32)
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()
    torch.testing.assert_close(plain_logprobs(merged, TEXT), plain_logprobs(own.model, TEXT), atol=1e-3, rtol=0)
