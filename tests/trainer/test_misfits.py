"""Causal types of transformers that no row of the table has: exact, or refused in a sentence."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.proof import PublishError, SamplerProof
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.loading import NOT_SAMPLED, BaseModelError, auto_class, check_sampled_here
from gavel.trainer.policy.policy import Policy
from tests.trainer.conftest import a_model
from tests.trainer.families import FAMILIES, Family
from tests.trainer.test_families import forked, plain_logprobs, sampling, two_turns

pytestmark = pytest.mark.slow

NATS = 5e-4
"""Float32 rounds MiniCPM 3 by 1e-4."""
_MOST_PARAMETERS = 20_000_000

_STATES: dict[str, Any] = {"mamba_d_state": 8, "num_key_value_heads": 4, "head_dim": None}
_LATENT: dict[str, Any] = {
    **{"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8},
    **{"qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": None},
}
SHAPES: dict[str, dict[str, Any]] = {
    "bamba": {
        **{"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16},
        **{"mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16},
    },
    "codegen": {"rotary_dim": 8, "n_embd": 32, "n_head": 4},
    "falcon": {"head_dim": None},
    "gpt_neo": {
        **{"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_hidden_layers": None},
        "window_size": 8,
    },
    "gptj": {"rotary_dim": 8},
    "jamba": {
        **{"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
        **{"num_experts": 4, "num_experts_per_tok": 2},
    },
    "minicpm3": _LATENT,
    "minimax": {
        **{"num_local_experts": 4, "num_experts_per_tok": 2},
        "layer_types": ["linear_attention", "full_attention"],
    },
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
    "youtu": _LATENT,
    "zamba": _STATES
    | {"attention_head_dim": 16, "num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1}
    | {"n_mamba_heads": 2, "mamba_dt_rank": 4},
    "zamba2": _STATES
    | {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "hybrid_layer_ids": [1]}
    | {"mamba_headdim": 16, "n_mamba_heads": 4, "mamba_ngroups": 1, "num_mem_blocks": 1}
    | {"chunk_size": 16, "attention_head_dim": 16, "mamba_expand": 2},
}

OpenPolicy = Callable[[Family], Policy]


def small(kind: str) -> Family:
    family = Family(kind, kind, SHAPES.get(kind, {}))
    try:
        config = family.read_config()
        with torch.device("meta"):
            size = sum(each.numel() for each in auto_class(config).from_config(config).parameters())
    except Exception as error:  # each type checks its config in its own way
        pytest.skip(f"{type(error).__name__}: {error}")
    if size > _MOST_PARAMETERS:
        pytest.skip(f"{size:,} parameters")
    return family


def prove(engine: TransformersEngine, own: Policy) -> None:
    @torch.no_grad()
    def learned(*batch: TokenSequence) -> torch.Tensor:
        return trained_logprobs(own, batch)

    SamplerProof(engine, own, learned, learned, adapted=False)


@torch.no_grad()
def sampling_gap(engine: TransformersEngine, plain: Any) -> float:
    try:
        turns = [*two_turns(engine)]
    except EngineError:
        return math.inf
    return max((torch.tensor(said.logprobs) - plain_logprobs(plain, each)).abs().max().item() for each, said in turns)


@pytest.mark.parametrize("kind", sorted(NOT_SAMPLED))
def test_what_the_embedded_engine_is_said_not_to_sample_it_samples_wrongly(kind, opened, tmp_path):
    family = small(kind)
    with pytest.raises(BaseModelError, match="embedded engine cannot sample") as refusal:
        check_sampled_here(family.read_config())
    assert "--engine vllm" in refusal.value.remedy
    own = opened(family)
    plain: Any = PeftModel.from_pretrained(family.model(), str(tmp_path)).eval()
    with sampling(family, own) as engine:
        assert sampling_gap(engine, plain) > 1e-4


@pytest.mark.parametrize("kind", ["recurrent_gemma", "rwkv"])
def test_the_proof_at_registration_finds_what_the_config_would_not_tell(kind: str, opened: OpenPolicy) -> None:
    family = small(kind)
    own = opened(family)
    with sampling(family, own) as engine, pytest.raises(PublishError, match=r"does not fit|cannot sample") as error:
        prove(engine, own)
    assert "--engine vllm" in error.value.remedy


@pytest.mark.parametrize("kind", ["jamba", "bert", "whisper"])
async def test_a_known_misfit_is_refused_before_weights_are_loaded(kind: str, tmp_path: Path, policy: Policy) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path / "base")  # there are no weights
    policy.tokenizer.save_pretrained(tmp_path / "base")
    model = a_model(base_model=str(tmp_path / "base"), renderer="qwen3")
    async with LocalBackend(tmp_path / "runs") as backend:
        with pytest.raises(BaseModelError, match=r"embedded engine cannot sample|not a causal language model"):
            await model.register(backend)


@pytest.mark.parametrize("kind", ["opt", "ctrl", "recurrent_gemma", "laguna"])
def test_the_learner_is_exact_where_this_was_once_wrong(kind: str, opened: OpenPolicy, tmp_path: Path) -> None:
    family = small(kind)
    own = opened(family)
    plain: Any = PeftModel.from_pretrained(family.model(), str(tmp_path)).eval()
    with torch.no_grad():
        expected = torch.cat([plain_logprobs(plain, tokens) for tokens in forked()])
        torch.testing.assert_close(trained_logprobs(own, forked()), expected, atol=NATS, rtol=0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - {each.model_type for each in FAMILIES})
)
def test_every_type_of_transformers_is_exact_or_refused(kind, opened, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    family = small(kind)
    try:
        check_sampled_here(family.read_config())
        own = opened(family)
    except BaseModelError:
        return
    plain: Any = PeftModel.from_pretrained(family.model(), str(tmp_path)).eval()
    try:
        with torch.no_grad():
            expected = torch.cat([plain_logprobs(plain, tokens) for tokens in forked()])
    except RuntimeError as error:  # of a shape that this type does not have
        pytest.skip(str(error))
    with sampling(family, own) as engine:
        try:
            prove(engine, own)
        except PublishError:
            return
        with torch.no_grad():
            torch.testing.assert_close(trained_logprobs(own, forked()), expected, atol=NATS, rtol=0)
        assert sampling_gap(engine, plain) < NATS
