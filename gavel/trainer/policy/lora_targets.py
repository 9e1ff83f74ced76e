"""Which layers of a base model are adapted: the linear layers of its text decoder that can be published.

Not the vocabulary head. Not routers and gates: sampler and learner must choose the same experts. Not the experts of a
mixture, which transformers and servers hold as one tensor for all of them; where PEFT takes the names of dense layers
for those of the experts, not these either. Not the layers of a state-space mixer, whose kernels read weights past their
modules.
"""

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from transformers.pytorch_utils import Conv1D

from gavel.trainer.policy.loading import BaseModelError, text_decoder

_LEFT_OUT = {"experts", "router", "gate", "shared_expert_gate", "mamba"}
"""Components of names."""


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
        and not _LEFT_OUT & set(name.split("."))
        and name.rpartition(".")[0] not in mixers
    }
    names = _not_of_experts(names, model)
    if not names:
        raise BaseModelError(
            f"{model.config.model_type} has no linear layers that can be adapted", "Choose another base model."
        )
    names = _chosen(names, wanted, model)
    leaves = {_leaf(name) for name in names}
    named_alike = {name for name, _ in model.named_modules() if _leaf(name) in leaves}
    return sorted(leaves if named_alike == names else names)


def _chosen(names: set[str], wanted: Sequence[str], model: Any) -> set[str]:
    if not wanted:
        return names
    chosen: set[str] = set()
    for end in wanted:
        named = {name for name in names if f".{name}".endswith(f".{end}")}
        if not named:
            raise BaseModelError(
                f"{model.config.model_type} has no layer {end!r} that can be adapted",
                f"There are: {', '.join(sorted({_leaf(name) for name in names}))}; whole names work, too.",
            )
        chosen |= named
    return chosen


def _not_of_experts(names: set[str], model: Any) -> set[str]:
    """Those that PEFT does not take for the parameters of fused experts."""
    asked = LoraConfig(target_modules=list(names))
    convert_peft_config_for_transformers(asked, model, None)
    return set(asked.target_modules or ())


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
