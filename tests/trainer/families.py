"""Families of base models, each as a tiny random config of transformers' own class, and what is claimed of it.

docs/models.md is made of this table; test_families.py holds every cell against the models.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from gavel.trainer.policy.loading import auto_class

VOCABULARY = 832
CONTEXT = 512
WINDOW = 8

ALL = "all"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LATENT_ATTENTION = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"

_BASE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
_BASE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT}
_BASE |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
_WINDOWED: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": [_SLIDING, _FULL]}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = _EXPERTS | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
_LATENT |= {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
_LATENT |= {"num_key_value_heads": 4}
_HEADS = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_LINEAR_HALF: dict[str, Any] = {"layer_types": [_LINEAR, _FULL], **_HEADS}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
_LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SHARED_EXPERT: dict[str, Any] = _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


@dataclass(frozen=True)
class Family:
    name: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    lora: tuple[str, ...] | str = ALL
    """Names of the adapted layers; ALL: every linear layer of the text model but the head."""
    alone: str = ""
    """Why the learner computes one sequence after the other; empty: shared prefixes once."""
    renderer: str = ""
    experts: bool = False
    reads: dict[str, Any] | None = None
    """Config of the part that reads images, where the family's checkpoints have one."""

    @property
    def batched(self) -> bool:
        """Whether the embedded engine samples many conversations together, or one at a time."""
        return self.alone in ("", _OWN)

    def model(self, **loading: Any) -> Any:
        config = self.read_config()
        torch.manual_seed(0)
        model = auto_class(config).from_config(config, **loading).eval().requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():  # norms, biases and sinks too
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        return model

    def read_config(self) -> Any:
        settings = {name: value for name, value in (_BASE | self.config).items() if value is not None}
        if self.reads is None:
            return AutoConfig.for_model(self.model_type, **settings)
        text_type = settings.pop("text_type")
        config = AutoConfig.for_model(
            self.model_type, text_config={"model_type": text_type} | settings, vision_config=self.reads
        )
        config.architectures = [MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[self.model_type]]  # as published
        return config


_STATE = "linear attention"
_SPACE = "state space"
_OWN = "attention of its own"
_EYES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_EYES |= {"image_size": 28, "patch_size": 14}
_QWEN_EYES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}
_QWEN_EYES |= {"out_hidden_size": 32, "num_position_embeddings": 16}
_LONGROPE = {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 256}
_LLAMA_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
_GEMMA_INPUTS = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY}
_GEMMA_E: dict[str, Any] = {"sliding_window": WINDOW, "num_hidden_layers": 4, "layer_types": [_SLIDING, _FULL] * 2}
_GEMMA_E |= {"num_kv_shared_layers": 2, **_GEMMA_INPUTS}
_GEMMA_3N = _GEMMA_E | {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 4}
_GEMMA_3N |= {"altup_num_inputs": 2}
_GEMMA_4 = _WINDOWED | {"text_type": "gemma4_text", "num_kv_shared_layers": 0, "global_head_dim": 16}
_GEMMA_4 |= _GEMMA_INPUTS | {"hidden_size_per_layer_input": 0, "final_logit_softcapping": 5.0}
_SOFTCAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 8}
_GRANITE_4 = _LOCAL_EXPERTS | _MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16}
_GRANITE_4 |= {"logits_scaling": 4.0}
_GRANITE_LAYERS = (*ATTENTION, "input_linear", "output_linear")
_GLM_4 = _EXPERTS | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_shared_experts": 1}
_GLM_FLASH = _LATENT | {"mlp_layer_types": ["dense", "sparse"]}
_NEXT_LAYERS = (*ATTENTION, "in_proj_qkvz", "in_proj_ba", "out_proj")
_LINEAR_LAYERS = (*ATTENTION, "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", *MLP)
_QWEN_3_5 = _LINEAR_HALF | {"text_type": "qwen3_5_text"}
_QWEN_3_5_MOE = _SHARED_EXPERT | _LINEAR_HALF | {"text_type": "qwen3_5_moe_text"}
_VL_EYES = _QWEN_EYES | {"deepstack_visual_indexes": [0]}
_LLAMA_4: dict[str, Any] = {"text_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1}
_LLAMA_4 |= {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 48, "attention_chunk_size": WINDOW}
_LLAMA_4 |= {"layer_types": ["chunked_attention", _FULL], "no_rope_layers": [1, 0]}
_LLAMA_EYES = _EYES | {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
_MULTIPLIED = {"mamba_d_ssm": 64, "lm_head_multiplier": 0.5}
_NEMOTRON: dict[str, Any] = {"layers_block_type": ["mamba", "attention", "mlp"], "num_hidden_layers": 3}
_NEMOTRON |= {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 16}

FAMILIES = (
    Family("Llama 3", "llama", _rope("llama3", factor=8.0, **_LLAMA_ROPE), renderer="llama-3"),
    Family("SmolLM2", "llama", {"tie_word_embeddings": True}),
    Family("SmolLM3", "smollm3", {"no_rope_layers": [1, 0]}),
    Family("Qwen2.5", "qwen2"),
    Family(
        "Qwen2 with a window", "qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    ),
    Family("Qwen3", "qwen3", renderer="qwen3"),
    Family("Mistral", "mistral", {"sliding_window": WINDOW}),
    Family("Ministral", "ministral", _WINDOWED),
    Family(
        "Ministral 3, Mistral Small", "mistral3", {"text_type": "ministral3"}, reads=_EYES | {"model_type": "pixtral"}
    ),
    Family("OLMo 2", "olmo2"),
    Family("OLMo 3", "olmo3", _WINDOWED),
    Family("Phi 3, Phi 4", "phi3"),
    Family(
        "Phi 4 mini", "phi3", _LONGROPE | _rope("longrope", short_factor=[1.0] * 3, long_factor=[2.0] * 3, **_LONGROPE)
    ),
    Family("GLM 4", "glm4"),
    Family("GLM 4.5", "glm4_moe", _GLM_4, ATTENTION, renderer="glm-4.5", experts=True),
    Family("GLM 4.7 Flash", "glm4_moe_lite", _GLM_FLASH, LATENT_ATTENTION, renderer="glm-5", experts=True),
    Family("Granite 3", "granite", {"logits_scaling": 4.0, "attention_multiplier": 0.1}),
    Family("Granite 3 MoE", "granitemoe", _LOCAL_EXPERTS | {"logits_scaling": 4.0}, ATTENTION, experts=True),
    Family("Granite 4", "granitemoehybrid", _GRANITE_4, _GRANITE_LAYERS, alone=_SPACE, experts=True),
    Family("Cohere", "cohere", {"logit_scale": 0.25}),
    Family("Cohere 2", "cohere2", _WINDOWED | {"logit_scale": 0.25}),
    Family("Gemma 2", "gemma2", _WINDOWED | _SOFTCAPS),
    Family("Gemma 3", "gemma3", _WINDOWED | {"text_type": "gemma3_text"}, reads=_EYES),
    Family("Gemma 3n", "gemma3n_text", _GEMMA_3N),
    Family("Gemma 4", "gemma4", _GEMMA_4, renderer="gemma4", reads=_EYES | {"num_key_value_heads": 2, "head_dim": 8}),
    Family("Gemma 4 E", "gemma4_text", _GEMMA_E | {"global_head_dim": 16}, renderer="gemma4"),
    Family(
        "GPT-OSS", "gpt_oss", _LOCAL_EXPERTS | _WINDOWED | _rope("default"), ATTENTION, renderer="gpt-oss", experts=True
    ),
    Family("Qwen3-MoE", "qwen3_moe", _EXPERTS | {"num_experts": 4}, ATTENTION, renderer="qwen3", experts=True),
    Family("Qwen2-MoE", "qwen2_moe", _SHARED_EXPERT | {"decoder_sparse_step": 1}, (*ATTENTION, *MLP), experts=True),
    Family("Mixtral", "mixtral", _LOCAL_EXPERTS, ATTENTION, experts=True),
    Family("OLMoE", "olmoe", {"num_experts": 4, "num_experts_per_tok": 2}, ATTENTION, experts=True),
    Family("PhiMoE", "phimoe", _LOCAL_EXPERTS | {"sliding_window": WINDOW}, ATTENTION, experts=True),
    Family("DeepSeek V2", "deepseek_v2", _LATENT, LATENT_ATTENTION, experts=True),
    Family(
        "DeepSeek V3", "deepseek_v3", _LATENT | {"n_group": 2}, LATENT_ATTENTION, renderer="deepseek-v3", experts=True
    ),
    Family("MiniMax-M2", "minimax_m2", _LOCAL_EXPERTS, ATTENTION, renderer="minimax-m2", experts=True),
    Family("Qwen3-Next", "qwen3_next", _SHARED_EXPERT | _LINEAR_HALF, _NEXT_LAYERS, alone=_STATE, experts=True),
    Family("Qwen3.5", "qwen3_5", _QWEN_3_5, alone=_STATE, renderer="qwen3.5", reads=_QWEN_EYES),
    Family("Qwen3.5-MoE", "qwen3_5_moe", _QWEN_3_5_MOE, _LINEAR_LAYERS, _STATE, "qwen3.5", True, _QWEN_EYES),
    Family("Qwen3-VL", "qwen3_vl", {"text_type": "qwen3_vl_text"}, renderer="qwen3-vl", reads=_VL_EYES),
    Family("Llama 4", "llama4", _LLAMA_4, (*ATTENTION, *MLP), alone="its attention counts tokens", reads=_LLAMA_EYES),
    Family("Nemotron 4", "nemotron", alone=_OWN),
    Family(
        "Nemotron 3", "nemotron_h", _NEMOTRON, (*ATTENTION, "up_proj", "down_proj"), alone=_SPACE, renderer="nemotron-3"
    ),
    Family("Falcon-H1", "falcon_h1", _MAMBA | _MULTIPLIED, (*ATTENTION, *MLP), alone=_SPACE),
    Family("LFM2", "lfm2", {"layer_types": ["conv", _FULL], "block_multiple_of": 8}, alone="convolution"),
    Family("EXAONE 4", "exaone4", _WINDOWED),
    Family("StarCoder 2", "starcoder2", {"sliding_window": WINDOW}),
    Family("Phi 2", "phi"),
    Family("Seed-OSS", "seed_oss"),
)

BY_NAME = {family.name: family for family in FAMILIES}
