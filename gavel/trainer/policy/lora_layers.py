"""Which layers get LoRA weights: the linear layers of the text decoder that can be published.

Not the vocabulary head, not routers and gates (sampler and learner must choose the same experts), not the layers of a
state-space mixer, whose kernels read weights past their modules; experts only where they are asked for.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.transformers_weight_conversion import (
    convert_peft_adapter_state_dict_for_transformers,
    convert_peft_config_for_transformers,
)
from transformers.pytorch_utils import Conv1D

from gavel.trainer.config import LoraSettings
from gavel.trainer.kernels.fused_layers import LoraLinear, compute_experts, has_stacked_experts, stacked_weights
from gavel.trainer.policy.loading import BaseModelError, is_quantized, text_decoder

_KEPT = {
    "experts": "the experts of a mixture are one tensor for all of them: --lora-experts, or LoraSettings(experts=True)",
    "router": "sampler and learner must choose the same experts",
    "gate": "sampler and learner must choose the same experts",
    "shared_expert_gate": "it is a gate, not a layer",
    "mamba": "the kernels of a state-space mixer read weights past their modules",
}
"""Components of names, and why such layers keep their weights."""


def lora_targets(model: Any, wanted: Sequence[str] = ()) -> list[str]:
    """The layers' names: their last components where these name no other module, otherwise whole names.

    `wanted`: the ends of names, of which each must name a layer; none for all. Raises `BaseModelError` when there are
    none.
    """
    reasons = _why_kept(model)
    names = {name for name, reason in reasons.items() if reason is None}
    if not names:
        raise BaseModelError(
            f"{model.config.model_type} has no linear layers that can be adapted", "Choose another base model."
        )
    chosen: set[str] = set()
    for end in wanted:
        named = [name for name in reasons if f".{name}".endswith(f".{end}")]
        if not names & {*named}:
            why = f": {reasons[named[0]]}" if named else ""
            known = ", ".join(sorted({_end(name, 1) for name in names}))
            raise BaseModelError(
                f"{model.config.model_type} has no layer {end!r} that can be adapted{why}",
                f"There are: {known}; whole names work, too.",
            )
        chosen |= names & {*named}
    return _shortest(chosen or names, (name for name, _ in model.named_modules()), 1)


def expert_targets(model: Any) -> list[str]:
    """The names of the stacked weights of the experts in the text decoder, for PEFT's `target_parameters`.

    Raises `BaseModelError` when there are none that can be adapted.
    """
    inside = set(text_decoder(model).modules())
    found = {name: module for name, module in model.named_modules() if module in inside and has_stacked_experts(module)}
    layers = {*found, *(f"{name}.base_layer" for name in found)}
    if not found or _that_load_again(layers, model) != layers:
        why = (
            "no experts as transformers stacks them" if not found else "experts whose adapter PEFT would not read again"
        )
        raise BaseModelError(
            f"{model.config.model_type} has {why}", "Leave out --lora-experts: its other linear layers are adapted."
        )
    names = {f"{name}.{weight}" for name, module in found.items() for weight in stacked_weights(module)}
    return _shortest(names, (name for name, _ in model.named_parameters()), 2)


def _why_kept(model: Any) -> dict[str, str | None]:
    """Why each module, and each parameter, keeps its weights; None where it is adapted."""
    inside, head = set(text_decoder(model).modules()), model.get_output_embeddings()
    mixers = [name for name, module in model.named_modules() if "Mamba" in type(module).__name__]
    found: dict[str, str | None] = {}
    for name, part in [*model.named_modules(), *model.named_parameters()]:
        found[name] = next((reason for each, reason in _KEPT.items() if each in name.split(".")), None)
        if name.rpartition(".")[0] in mixers:
            found[name] = _KEPT["mamba"]
        elif part is head:
            found[name] = "the vocabulary head is frozen"
        elif part not in inside or not isinstance(part, torch.nn.Linear | Conv1D):
            found[name] = found[name] or "it is no linear layer of the text decoder"
    names = [name for name, reason in found.items() if reason is None]
    asked = LoraConfig(target_modules=names)
    convert_peft_config_for_transformers(asked, model, None)  # takes out what is a parameter of fused experts
    kept = set(names) - _that_load_again(asked.target_modules or (), model)
    return found | dict.fromkeys(kept, "PEFT would read its adapter as that of another layer")


def _that_load_again(names: Iterable[str], model: Any) -> set[str]:
    """The names whose adapter keeps its name when PEFT reads it from a file; PEFT renames by transformers' checkpoint
    names, which may match other modules too."""
    halves = {name: f"base_model.model.{name}.lora_A.weight" for name in names}
    weights = {half: torch.empty(0) for half in halves.values()}
    read = convert_peft_adapter_state_dict_for_transformers(model, LoraConfig(target_modules=list(names)), weights)
    return {name for name, half in halves.items() if half in read}


def _shortest(names: set[str], among: Iterable[str], parts: int) -> list[str]:
    """The last components of the names, where these name nothing else `among` all; otherwise the whole names."""
    ends = {_end(name, parts) for name in names}
    return sorted(ends if {name for name in among if _end(name, parts) in ends} == names else names)


def _end(name: str, parts: int) -> str:
    return ".".join(name.split(".")[-parts:])


def add_adapter(base: Any, lora: LoraSettings, *, plain: bool | None = None) -> PeftModel:
    """The base with an adapter. `plain`: over weights that are not quantized; None: as they are."""
    torch.manual_seed(lora.seed)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        target_modules=lora_targets(base, lora.targets),
        target_parameters=expert_targets(base) if lora.experts else None,
        task_type="CAUSAL_LM",
    )
    if not is_quantized(base) if plain is None else plain:
        settings._register_custom_module({torch.nn.Linear: LoraLinear})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses a renamed attribute of transformers
        model = get_peft_model(base, settings)
    compute_experts(model)
    return model  # type: ignore[return-value]
