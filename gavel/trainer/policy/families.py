"""What the config of a base model tells about how it can be trained and sampled, before any weight is loaded.

docs/models.md is the table of the families that are tested; every other one gets the same checks.
"""

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from gavel.trainer.kernels.attention_span import layer_spans
from gavel.trainer.policy.loading import BaseModelError, auto_class

_BY_LENGTH = ("dynamic", "longrope")
"""RoPE whose frequencies depend on the longest position of a pass."""

_WINDOWED = frozenset(
    (
        *("cohere2", "exaone4", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "ministral"),
        *("mistral", "mixtral", "olmo3", "phi3", "phimoe", "qwen2", "starcoder2"),
    )
)
"""Types of text models whose windows are known to be those of their configs, by test."""


def usable_context(config: Any) -> int:
    """Tokens of a context over which all passes agree.

    Within the length that the model was first trained for, RoPE that depends on the length of the pass does not, so
    learner, engine and vLLM compute the same. Raises `BaseModelError` for a config that does not tell,
    and for one of no language model.
    """
    auto_class(config)
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise BaseModelError(
            f"the config of this {config.model_type} does not tell its context length (max_position_embeddings)",
            "Add it to the model's config.json.",
        )
    ropes = getattr(text, "rope_parameters", None) or {}
    kinds = [ropes, *(each for each in ropes.values() if isinstance(each, dict))]
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


def chooses_experts(config: Any) -> bool:
    """Whether it is a mixture of experts, among which sampler and learner choose each by its own arithmetic."""
    text = config.get_text_config()
    counts = (getattr(text, name, None) or 0 for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    return max(counts) > 1


def _why_not_plain(config: Any) -> str | None:
    text = config.get_text_config()
    known: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    models = [known[type(each)] for each in (config, text) if type(each) in known]
    if layer_spans(text) is None or any(model._is_stateful for model in models):
        return "it has layers that keep a state (linear attention, state space or convolution)"
    if not all(model._supports_attention_backend for model in models):
        return "its attention cannot be exchanged"
    if getattr(text, "attn_temperature_tuning", False):
        return "its attention counts the tokens of a pass"
    if getattr(text, "index_topk", None):
        return "its attention chooses among the tokens of a pass"
    return None


def _why_window(config: Any, context: int) -> str | None:
    text = config.get_text_config()
    limited = any(span.limits(context) for span in layer_spans(text) or ())
    return "its windows are not known here" if limited and text.model_type not in _WINDOWED else None
