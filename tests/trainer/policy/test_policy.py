"""The base model stays, the adapter comes and goes, and a wrong name is an error at once."""

import json
import re
from importlib.util import find_spec

import huggingface_hub
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.policy.policy import BaseModelError, Policy, load_base
from tests.trainer.conftest import tiny_model

pytestmark = pytest.mark.slow

LORA = LoraSettings(rank=4)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def adapted(fresh_policy):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in fresh_policy.parameters():
            parameter.copy_(0.1 * torch.randn_like(parameter))
    return fresh_policy


@pytest.fixture
def own_directory(tmp_path, policy):
    """A base model of the user's own, with a tokenizer that fits."""
    tiny_model(vocab_size=832).save_pretrained(tmp_path / "own")
    policy.tokenizer.save_pretrained(tmp_path / "own")
    return tmp_path / "own"


def adapter(policy: Policy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.parameters()]


def all_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_only_the_adapter_is_trained_and_it_is_on_every_linear_layer(policy):
    trained = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name for name in trained)
    layers = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in trained}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert policy.parameter_count == sum(
        p.numel() for p in load_base(EMBEDDED_POLICY, policy.dtype, "cpu").parameters()
    )


def test_a_new_adapter_changes_nothing(policy, embedded_base):
    weights = dict(embedded_base.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in policy.merged_weights())


def test_merged_weights_are_pefts_own_merge(adapted):
    found = {name: weight.clone() for name, weight in adapted.merged_weights()}
    base = dict(load_base(EMBEDDED_POLICY, adapted.dtype, "cpu").named_parameters())
    expected = dict(adapted.model.merge_and_unload().named_parameters())
    assert len(found) == 7 * 3
    for name, weight in expected.items():
        assert torch.allclose(found.get(name, base[name]), weight, atol=1e-6)
    assert any(not torch.equal(found[name], base[name]) for name in found)


def test_merging_leaves_base_and_adapter_alone(adapted):
    before = {name: value.clone() for name, value in adapted.model.state_dict().items()}
    list(adapted.merged_weights())
    assert all(torch.equal(value, before[name]) for name, value in adapted.model.state_dict().items())


def test_a_saved_adapter_comes_back_bit_by_bit(adapted, tmp_path):
    adapted.save_adapter(tmp_path)
    other = Policy(EMBEDDED_POLICY, LoraSettings(rank=4, seed=5))
    assert not all_equal(adapter(adapted), adapter(other))
    other.load_adapter(tmp_path)
    assert all_equal(adapter(adapted), adapter(other))
    assert all(parameter.requires_grad for parameter in other.parameters())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers for an attribute it has renamed
def test_a_saved_adapter_is_one_that_peft_loads_by_itself(adapted, tmp_path):
    adapted.save_adapter(tmp_path)
    assert all("lora_" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    theirs = PeftModel.from_pretrained(load_base(EMBEDDED_POLICY, adapted.dtype, "cpu"), str(tmp_path)).eval()
    ids = torch.tensor([[1, 5, 9, 200]])
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=ids).logits, adapted.model(input_ids=ids).logits)


def test_an_adapter_of_another_shape_is_refused(adapted, tmp_path):
    Policy(EMBEDDED_POLICY, LoraSettings(rank=2)).save_adapter(tmp_path)
    before = adapter(adapted)
    with pytest.raises(BaseModelError, match="does not fit") as error:
        adapted.load_adapter(tmp_path)
    assert "rank" in error.value.remedy
    assert all_equal(before, adapter(adapted))


def test_an_adapter_that_lacks_a_layer_is_refused(adapted, tmp_path):
    adapted.save_adapter(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    save_file(dict(list(load_file(file).items())[1:]), file)
    with pytest.raises(BaseModelError, match="it lacks"):
        adapted.load_adapter(tmp_path)


def test_an_adapter_of_another_model_is_refused(adapted, tmp_path, own_directory, policy):
    deeper = tiny_model(vocab_size=832, num_hidden_layers=5)
    deeper.save_pretrained(own_directory)
    Policy(str(own_directory), LORA).save_adapter(tmp_path / "adapter")
    with pytest.raises(BaseModelError, match="does not fit"):
        adapted.load_adapter(tmp_path / "adapter")


def test_the_seed_decides_the_random_half_of_the_adapter():
    one, same, other = (adapter(Policy(EMBEDDED_POLICY, LoraSettings(rank=4, seed=seed))) for seed in (1, 1, 2))
    assert all_equal(one, same)
    assert not all_equal(one, other)


@pytest.mark.parametrize("name", ["nobody/has-this-model", "./no/such/directory", "not a name at all", "no-slash"])
def test_a_base_model_that_does_not_exist_is_an_error_that_names_it(name):
    with pytest.raises(BaseModelError, match="cannot be loaded") as error:
        Policy(name, LORA)
    assert repr(name) in error.value.message
    assert EMBEDDED_POLICY in error.value.remedy


def test_a_directory_without_a_model_is_an_error(tmp_path):
    with pytest.raises(BaseModelError, match=r"is no base model: it is a directory without a config\.json"):
        Policy(str(tmp_path), LORA)


def test_a_half_downloaded_model_is_an_error(own_directory):
    weights = own_directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(BaseModelError, match="cannot be loaded") as error:
        Policy(str(own_directory), LORA)
    assert "Fetch its files again" in error.value.remedy


def test_a_weight_that_the_files_lack_is_named_and_not_drawn_at_random(own_directory):
    weights = load_file(own_directory / "model.safetensors")
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    del weights[name]
    save_file(weights, own_directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(BaseModelError, match=f"lack the weight {re.escape(name)}") as error:
        Policy(str(own_directory), LORA, renderer="qwen3")
    assert "Fetch its files again" in str(error.value)


def changed_config(directory, **fields):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | fields))


def test_weights_that_do_not_fit_the_config_are_named_with_both_shapes(own_directory):
    wide = json.loads((own_directory / "config.json").read_text())["intermediate_size"]
    changed_config(own_directory, intermediate_size=wide + 8)
    with pytest.raises(BaseModelError, match=rf"do not fit its config: .*{wide}.*{wide + 8}"):
        Policy(str(own_directory), LORA, renderer="qwen3")


def test_a_field_of_the_config_of_another_type_is_told(own_directory):
    changed_config(own_directory, num_attention_heads="four")
    with pytest.raises(BaseModelError, match="num_attention_heads"):
        Policy(str(own_directory), LORA, renderer="qwen3")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_is_named(own_directory, value):
    weights = load_file(own_directory / "model.safetensors")
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    weights[name][0, 0] = value
    save_file(weights, own_directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(BaseModelError, match=f"{re.escape(name)} of .* is not finite"):
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
    changed_config(own_directory, **fields)
    with pytest.raises(BaseModelError, match=told) as error:
        Policy(str(own_directory), LORA, renderer="qwen3")
    assert error.value.remedy


def test_weights_that_are_published_quantized_are_not_quantized_again(own_directory):
    changed_config(own_directory, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(BaseModelError, match="quantized already, by gptq") as error:
        Policy(str(own_directory), LORA, "qwen3", PolicySettings(quantization="4bit"))
    assert "that it was quantized from" in error.value.remedy


def test_a_directory_of_the_users_own_is_a_base_model(own_directory):
    policy = Policy(str(own_directory), LORA)
    assert policy.max_context == 1024
    assert policy.renderer.get_stop_token_ids()


def test_a_tokenizer_with_more_tokens_than_the_model_is_an_error_that_names_both(own_directory):
    tiny_model(vocab_size=64).save_pretrained(own_directory)
    with pytest.raises(BaseModelError, match=r"does not fit the model: it needs \d+ tokens, the model has 64") as error:
        Policy(str(own_directory), LORA)
    assert "tokenizer" in error.value.remedy


@pytest.mark.parametrize("base_model", [EMBEDDED_POLICY, None])
def test_an_unknown_renderer_is_an_error_that_names_a_known_one(own_directory, base_model):
    with pytest.raises(BaseModelError, match="renderer") as error:
        Policy(base_model or str(own_directory), LORA, renderer="no-such-format")
    assert "no-such-format" in error.value.message
    assert "qwen3" in error.value.remedy


def test_a_renderer_can_be_named(own_directory):
    assert type(Policy(str(own_directory), LORA, renderer="qwen3").renderer).__name__ == "Qwen3Renderer"


def test_a_model_that_no_renderer_knows_is_an_error(tmp_path, policy):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=832, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BaseModelError, match="no exact renderer is known"):
        Policy(str(tmp_path), LORA)


def test_the_embedded_policy_is_where_its_name_says():
    assert (EMBEDDED_PATH / "model.safetensors").is_file()
