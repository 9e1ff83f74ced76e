"""Merged weights give the policy's log-probs, for families of every kind."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy import merged_model
from gavel.trainer.policy.loading import auto_class, plain_logits
from gavel.trainer.policy.merged_model import ExportError, export_dtype, write_merged
from gavel.trainer.policy.policy import Policy, expert_targets, lora_targets
from tests.trainer.families import FAMILIES, Family

pytestmark = pytest.mark.slow

IDS = [[5, 9, 31, 7, 7, 12, 40, 3, 18, 22, 64, 2, 90, 11]]
NATS = {torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 0.05}
"""Tolerances of the docs, per dtype, for log-probs of the tiny models here."""


def logprobs(model: Any) -> torch.Tensor:
    ids = torch.tensor(IDS)
    with torch.inference_mode():
        found = plain_logits(model, ids)[0, :-1].float().log_softmax(-1)
    return found.gather(-1, ids[0, 1:, None])[:, 0]


def shaken(model: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


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
        adapted = shaken(get_peft_model(own, lora)).eval()
        adapted.save_pretrained(tmp_path / "checkpoint")
        return adapted

    return make


PLAIN = [pytest.param(family, False, id=family.name) for family in FAMILIES]
WITH_EXPERTS = [pytest.param(family, True, id=f"{family.name} with experts") for family in FAMILIES if family.experts]


@pytest.mark.parametrize(("family", "experts"), [*PLAIN, *WITH_EXPERTS])
def test_a_merged_family_has_the_log_probs_of_base_and_adapter(family, experts, trained, tmp_path):
    expected = logprobs(trained(family, experts=experts))
    out = tmp_path / "out"
    gap = write_merged(str(tmp_path / "base"), PolicySettings(), tmp_path / "checkpoint", out, torch.float32)
    again: Any = auto_class(family.read_config()).from_pretrained(out, dtype="auto").eval()
    assert again.dtype == torch.float32
    assert gap < merged_model._TOLERANCE[torch.float32]
    torch.testing.assert_close(logprobs(again), expected, atol=NATS[torch.float32], rtol=0)
    assert not [file for file in out.iterdir() if "adapter" in file.name]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["SmolLM2", "Qwen3", "Gemma 2", "Granite 3", "Cohere 2", "GPT-OSS", "DeepSeek V3"])
def test_smaller_dtypes_keep_their_tolerances(name, dtype, trained, tmp_path):
    family = next(each for each in FAMILIES if each.name == name)
    expected = logprobs(trained(family))
    gap = write_merged(str(tmp_path / "base"), PolicySettings(), tmp_path / "checkpoint", tmp_path / "out", dtype)
    again: Any = auto_class(family.read_config()).from_pretrained(tmp_path / "out", dtype="auto").eval()
    assert again.dtype == dtype
    assert gap < merged_model._TOLERANCE[dtype]
    torch.testing.assert_close(logprobs(again), expected, atol=NATS[dtype], rtol=0)


@pytest.mark.parametrize(
    "more", [{}, {"rslora": True}, {"targets": ["q_proj", "down_proj"]}, {"dropout": 0.1}], ids=str
)
def test_the_learners_own_log_probs_are_those_of_the_merged_model(more: dict[str, Any], tmp_path):
    own = Policy(EMBEDDED_POLICY, LoraSettings(rank=4, **more))
    shaken(own.model)
    own.save_adapter(tmp_path / "checkpoint")
    write_merged(EMBEDDED_POLICY, PolicySettings(), tmp_path / "checkpoint", tmp_path / "out", torch.float32)
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = TokenSequence()
    tokens.extend(IDS[0][:1])
    tokens.extend(IDS[0][1:], logprobs=[-1.0] * (len(IDS[0]) - 1), temperature=1.0)
    with torch.no_grad():
        found = trained_logprobs(own, [tokens])
    torch.testing.assert_close(logprobs(merged), found, atol=1e-4, rtol=0)


def test_the_directory_has_all_that_serving_needs(tmp_path):
    write_merged(EMBEDDED_POLICY, PolicySettings(), None, tmp_path / "out", torch.float32)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", EMBEDDED_PATH))
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template


def test_a_merge_that_comes_out_wrong_is_no_export(monkeypatch, fresh_policy, tmp_path):
    shaken(fresh_policy.model)
    fresh_policy.save_adapter(tmp_path / "checkpoint")
    monkeypatch.setattr(merged_model, "_merge", lambda *_: None)
    with pytest.raises(ExportError, match="nats"):
        write_merged(EMBEDDED_POLICY, PolicySettings(), tmp_path / "checkpoint", tmp_path / "out", torch.float32)
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_another_rank_or_base_is_refused(tmp_path, policy):
    other = Policy(EMBEDDED_POLICY, LoraSettings(rank=3))
    other.save_adapter(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(ExportError, match="cannot be put over"):
        write_merged(EMBEDDED_POLICY, PolicySettings(), tmp_path / "checkpoint", tmp_path / "out", torch.float32)


def test_auto_is_the_dtype_of_the_bases_own_files(tmp_path):
    family = next(each for each in FAMILIES if each.name == "Qwen3")
    family.model().to(torch.bfloat16).save_pretrained(tmp_path)
    assert export_dtype(str(tmp_path), "auto") == torch.bfloat16
    assert export_dtype(str(tmp_path), "float16") == torch.float16


def test_the_export_of_a_4bit_base_has_the_weights_that_the_policy_computed_with(tmp_path, policy):
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=832,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "base")
    policy.tokenizer.save_pretrained(tmp_path / "base")
    settings = PolicySettings(quantization="4bit")
    own = Policy(str(tmp_path / "base"), LoraSettings(rank=2), "qwen3", settings)
    shaken(own.model)
    own.save_adapter(tmp_path / "checkpoint")
    expected = logprobs(own.model)
    write_merged(str(tmp_path / "base"), settings, tmp_path / "checkpoint", tmp_path / "out", torch.float32)
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()
    torch.testing.assert_close(logprobs(merged), expected, atol=1e-3, rtol=0)
