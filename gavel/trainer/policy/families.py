"""What the config of a base model tells about how it can be trained and sampled, before any weight is loaded.

docs/models.md is the table of the families that are tested; every other one gets the same checks.
"""

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from gavel.trainer.kernels.packed_parts import layer_spans
from gavel.trainer.policy.loading import BaseModelError, auto_class

_BY_LENGTH = ("dynamic", "longrope")
"""RoPE whose frequencies depend on the longest position of a pass."""

_ROPES = {*ROPE_INIT_FUNCTIONS, "default", None}

_WINDOWED = frozenset(
    (
        *("cohere2", "exaone4", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "ministral"),
        *("mistral", "mixtral", "olmo3", "phi3", "phimoe", "qwen2", "starcoder2"),
    )
)
"""Types of text models whose windows are known to be those of their configs, by test."""

_ONE_LENGTH = frozenset(("ctrl", "opt"))
"""Types whose decoders ask a cache for one length of all conversations."""

_IN_THE_MODEL = "its layers keep the state of one conversation in the model"
_NOT_CONTINUED = "its state is continued by one token at a time, not by an observation"
_OWN_CACHE = "it takes no cache of transformers' own"
NOT_SAMPLED = {
    "cpmant": _OWN_CACHE,
    "doge": "its cache gives other log-probs than a plain pass",
    "hrm_text": _OWN_CACHE,
    "jamba": _NOT_CONTINUED,
    "minimax": _OWN_CACHE,
    "openai-gpt": _OWN_CACHE,
    "recurrent_gemma": _IN_THE_MODEL,
    "rwkv": _OWN_CACHE,
    "xlstm": _OWN_CACHE,
    "zamba": _NOT_CONTINUED,
}
"""Why the embedded engine would sample these types wrongly, or fail; test_misfits.py tries each."""


def usable_context(config: Any) -> int:
    """Tokens of a context over which all passes agree.

    Within the length that the model was first trained for, RoPE that depends on the length of the pass does not, so
    learner, engine and vLLM compute the same. Raises `BaseModelError` for a config that does not tell,
    and for one of no language model.
    """
    auto_class(config)
    _check_causal(config)
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise BaseModelError(
            f"the config of this {config.model_type} does not tell its context length (max_position_embeddings)",
            "Add it to the model's config.json.",
        )
    ropes = getattr(text, "rope_parameters", None) or {}
    kinds = [ropes, *(each for each in ropes.values() if isinstance(each, dict))]
    unknown = next((kind for each in kinds if (kind := each.get("rope_type")) not in _ROPES), None)
    if unknown is not None:
        known = ", ".join(sorted(kind for kind in _ROPES if kind))
        raise BaseModelError(
            f"the config of this {config.model_type} has RoPE of type {unknown!r}, which transformers does not know",
            f"Mend rope_parameters in its config.json; there are {known}.",
        )
    originals = [
        each.get("original_max_position_embeddings") or context for each in kinds if each.get("rope_type") in _BY_LENGTH
    ]
    return min([context, *originals])


def why_alone(config: Any) -> str | None:
    """Why sequences of this model cannot share prefixes in a pass; None when they can."""
    return _why_not_plain(config) or _why_window(config, usable_context(config))


def why_unbatched(config: Any, max_context: int) -> str | None:
    """Why the embedded engine samples one conversation of this model at a time; None when it samples them together."""
    return _why_not_plain(config) or _why_window(config, max_context)


def check_sampled_here(config: Any) -> None:
    """Raises `BaseModelError` for a model that the embedded engine is known to sample wrongly. What is not known is
    found by the proof at registration, once the weights are loaded."""
    reason = NOT_SAMPLED.get(config.get_text_config().model_type)
    if reason is not None:
        raise BaseModelError(
            f"the embedded engine cannot sample {config.model_type}: {reason}",
            "Sample it with vLLM (--engine vllm, or LocalBackend(engine='vllm')), or choose another base model.",
        )


def chooses_experts(config: Any) -> bool:
    """Whether it is a mixture of experts, among which sampler and learner choose each by its own arithmetic."""
    text = config.get_text_config()
    counts = (getattr(text, name, None) or 0 for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    return max(counts) > 1


def _check_causal(config: Any) -> None:
    """Raises `BaseModelError` for an encoder, or half of an encoder-decoder, that transformers can load as a language
    model: its tokens see later ones, or it was trained beside an encoder."""
    encoders = MODEL_FOR_MASKED_LM_MAPPING_NAMES
    halves = {*MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES}
    if config.model_type in encoders or config.model_type in halves:
        kind = "an encoder-decoder" if config.model_type in halves else "an encoder"
        raise BaseModelError(
            f"{config.model_type} is {kind}, not a causal language model", "Choose another base model."
        )


def _why_not_plain(config: Any) -> str | None:
    text = config.get_text_config()
    known: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    models = [known[type(each)] for each in (config, text) if type(each) in known]
    if layer_spans(text) is None or any(model._is_stateful for model in models):
        return "it has layers that keep a state (linear attention, state space or convolution)"
    if not all(model._supports_attention_backend for model in models):
        return "its attention cannot be exchanged"
    if text.model_type in _ONE_LENGTH:
        return "its decoder knows one length of all conversations"
    if getattr(text, "attn_temperature_tuning", False):
        return "its attention counts the tokens of a pass"
    if getattr(text, "index_topk", None):
        return "its attention chooses among the tokens of a pass"
    return None


def _why_window(config: Any, context: int) -> str | None:
    text = config.get_text_config()
    limited = any(span.limits(context) for span in layer_spans(text) or ())
    return "its windows are not known here" if limited and text.model_type not in _WINDOWED else None
