"""Which layers of a base model are adapted: the linear layers of its text decoder that can be published.

Not the vocabulary head. Not routers and gates: sampler and learner must choose the same experts. The experts of a
mixture, which transformers and servers hold as one tensor for all of them, only where they are asked for; where PEFT
takes the names of dense layers for those of the experts, not these either. Not the layers of a state-space mixer, whose
kernels read weights past their modules. Not a layer whose adapter PEFT, reading it from a file, takes for another's.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft import LoraConfig
from peft.utils.transformers_weight_conversion import (
    convert_peft_adapter_state_dict_for_transformers,
    convert_peft_config_for_transformers,
)
from transformers.pytorch_utils import Conv1D

from gavel.trainer.kernels.lora_experts import has_stacked_experts, stacked_weights
from gavel.trainer.policy.loading import BaseModelError, text_decoder

_LEFT_OUT = {
    "experts": "the experts of a mixture are one tensor for all of them: --lora-experts, or LoraSettings(experts=True)",
    "router": "sampler and learner must choose the same experts",
    "gate": "sampler and learner must choose the same experts",
    "shared_expert_gate": "it is a gate, not a layer",
    "mamba": "the kernels of a state-space mixer read weights past their modules",
}
"""Components of names, and why such layers keep their weights."""
_HEAD = "the vocabulary head is frozen"
_ELSEWHERE = "it is no linear layer of the text decoder"
_UNPUBLISHED = "PEFT would read its adapter as that of another layer"


def lora_targets(model: Any, wanted: Sequence[str] = ()) -> list[str]:
    """The layers' names: their last components where these name no other module, otherwise whole names.

    `wanted`: the ends of names, of which each must name a layer; none for all. Raises `BaseModelError` when there are
    none.
    """
    inside = set(text_decoder(model).modules())
    mixers = tuple(name for name, module in model.named_modules() if "Mamba" in type(module).__name__)
    names = {
        name
        for name, module in model.named_modules()
        if module in inside
        and isinstance(module, torch.nn.Linear | Conv1D)
        and not _LEFT_OUT.keys() & set(name.split("."))
        and name.rpartition(".")[0] not in mixers
    }
    names = _not_of_experts(names, model)
    names &= _that_load_again(names, model)
    if not names:
        raise BaseModelError(
            f"{model.config.model_type} has no linear layers that can be adapted", "Choose another base model."
        )
    names = _chosen(names, wanted, model)
    leaves = {_leaf(name) for name in names}
    named_alike = {name for name, _ in model.named_modules() if _leaf(name) in leaves}
    return sorted(leaves if named_alike == names else names)


def expert_targets(model: Any) -> list[str]:
    """The names of the stacked weights of the experts in the text decoder, for PEFT's `target_parameters`.

    Raises `BaseModelError` when there are none that can be adapted.
    """
    inside = set(text_decoder(model).modules())
    found = {name: module for name, module in model.named_modules() if module in inside and has_stacked_experts(module)}
    layers = {name: name for name in found} | {f"{name}.base_layer": name for name in found}
    read = _that_load_again(layers, model)
    if not found or read != layers.keys():
        why = (
            "no experts as transformers stacks them" if not found else "experts whose adapter PEFT would not read again"
        )
        raise BaseModelError(
            f"{model.config.model_type} has {why}", "Leave out --lora-experts: its other linear layers are adapted."
        )
    names = {f"{name}.{weight}" for name, module in found.items() for weight in stacked_weights(module)}
    ends = {".".join(name.split(".")[-2:]) for name in names}
    named_alike = {name for name, _ in model.named_parameters() if ".".join(name.split(".")[-2:]) in ends}
    return sorted(ends if named_alike == names else names)


def _chosen(names: set[str], wanted: Sequence[str], model: Any) -> set[str]:
    if not wanted:
        return names
    chosen: set[str] = set()
    for end in wanted:
        named = {name for name in names if f".{name}".endswith(f".{end}")}
        if not named:
            known = f"There are: {', '.join(sorted({_leaf(name) for name in names}))}; whole names work, too."
            raise BaseModelError(
                f"{model.config.model_type} has no layer {end!r} that can be adapted{_why_not(end, model)}", known
            )
        chosen |= named
    return chosen


def _not_of_experts(names: set[str], model: Any) -> set[str]:
    """Those that PEFT does not take for the parameters of fused experts."""
    asked = LoraConfig(target_modules=list(names))
    convert_peft_config_for_transformers(asked, model, None)
    return set(asked.target_modules or ())


def _that_load_again(names: Iterable[str], model: Any) -> set[str]:
    """Those whose adapter has the same name when PEFT reads it from a file: transformers' names of checkpoints, which
    PEFT goes by, fit other modules too."""
    halves = {name: f"base_model.model.{name}.lora_A.weight" for name in names}
    weights = {half: torch.empty(0) for half in halves.values()}
    read = convert_peft_adapter_state_dict_for_transformers(model, LoraConfig(target_modules=list(names)), weights)
    return {name for name, half in halves.items() if half in read}


def _why_not(end: str, model: Any) -> str:
    """Why no layer of this name is adapted; empty for a name that the model does not have."""
    name = next((name for name, _ in model.named_modules() if f".{name}".endswith(f".{end}")), None)
    if name is None:  # a parameter of fused experts, perhaps
        name = next((name for name, _ in model.named_parameters() if f".{name}".endswith(f".{end}")), None)
    if name is None:
        return ""
    reasons = [reason for part, reason in _LEFT_OUT.items() if part in name.split(".")]
    module = model.get_submodule(name) if not reasons else None
    if module is not None and module is model.get_output_embeddings():
        reasons = [_HEAD]
    elif module is not None:
        inside = module in set(text_decoder(model).modules()) and isinstance(module, torch.nn.Linear | Conv1D)
        reasons = [_UNPUBLISHED if inside else _ELSEWHERE]
    return f": {reasons[0]}"


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
