"""LoRA over the stacked weights of a mixture's experts: each expert has factors of its own.

    y[t] = sum over the chosen e of share[t, e] * down_e(gate(up_e(x[t]))),    W_e + scale * B_e A_e for each W_e

A subclass of PEFT's wrapper of a parameter with the same weights, names and values. PEFT's own forward makes the
adapted weights of all experts, and their gradients, at every pass; here each token meets the factors of its experts
alone. The embedded engine computes the same product, so learner and sampler round alike.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import ParamWrapper
from torch.nn.functional import grouped_mm, pad

_ALIGNED_BYTES = 16
"""A multiple of which the rows of a factor of a grouped product take."""


class ExpertFactors(NamedTuple):
    """The adapter of one stacked weight."""

    down: torch.Tensor
    """A, `[experts, rank, in]`"""
    up: torch.Tensor
    """B, `[experts, out, rank]`"""
    scale: float

    def update(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """scale * B_e (A_e x) for `rows`, `[R, in]`, sorted by expert, of whom each has those up to its `ends`."""
        missing = -self.down.shape[1] % (_ALIGNED_BYTES // rows.element_size())
        down, up = pad(self.down, (0, 0, 0, missing)), pad(self.up, (0, missing))
        down, up = down.to(rows.dtype).contiguous(), up.to(rows.dtype).contiguous()
        return grouped_mm(grouped_mm(rows, down.mT, offs=ends), up.mT, offs=ends) * self.scale


def has_stacked_experts(module: torch.nn.Module) -> bool:
    """Whether transformers exchanges how these experts are computed, so that they are computed as it says here."""
    return all(hasattr(module, name) for name in ("_apply_gate", "has_gate", "has_bias", "is_transposed", "down_proj"))


def stacked_weights(experts: Any) -> tuple[str, str]:
    """The names of the weights of `experts`, in the order in which they are applied."""
    return ("gate_up_proj" if experts.has_gate else "up_proj"), "down_proj"


def adapted_experts(
    experts: Any,
    factors: Mapping[str, ExpertFactors],
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """What `experts` compute with `factors` over the weights that these name.

    `hidden_states`: `[T, hidden]`; `top_k_index`, `top_k_weights`: `[T, K]`, each token's experts and their shares.
    """
    chosen, order = top_k_index.reshape(-1).sort(stable=True)
    experts_here = torch.arange(experts.num_experts, device=chosen.device)
    ends = torch.searchsorted(chosen, experts_here, right=True, out_int32=True)
    into, out_of = stacked_weights(experts)
    rows = _product(experts, into, factors, hidden_states[order // top_k_index.shape[-1]], chosen, ends)
    rows = experts._apply_gate(rows) if experts.has_gate else experts.act_fn(rows)
    rows = _product(experts, out_of, factors, rows, chosen, ends)
    if experts.has_post_expert_norm:
        rows = experts.post_expert_norm(rows)
    rows = rows * top_k_weights.reshape(-1)[order, None]
    by_token = rows[order.argsort()].view(*top_k_index.shape, -1)
    return by_token.sum(1).to(hidden_states.dtype)


def _product(
    experts: Any,
    name: str,
    factors: Mapping[str, ExpertFactors],
    rows: torch.Tensor,
    chosen: torch.Tensor,
    ends: torch.Tensor,
) -> torch.Tensor:
    weight = getattr(experts, name)
    rows = rows.to(weight.dtype)
    result = grouped_mm(rows, weight if experts.is_transposed else weight.mT, offs=ends)
    if experts.has_bias:
        result = result + getattr(experts, f"{name}_bias")[chosen]
    return result + factors[name].update(rows, ends) if name in factors else result


class LoraExperts(ParamWrapper):
    """PEFT's wrapper of the last weight of an experts module, around those of the others, with its own forward."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        wrappers = expert_wrappers(self)
        if any(each.disable_adapters or each.merged or len(each.active_adapters) != 1 for each in wrappers):
            return super().forward(*args, **kwargs)
        factors = {each.parameter_name: factors_of(each) for each in wrappers}
        return adapted_experts(self.get_base_layer(), factors, *args, **kwargs)


def expert_wrappers(outer: ParamWrapper) -> list[ParamWrapper]:
    """PEFT wraps each weight of a module around the wrapper of the one before; the outermost is the first here."""
    found = [outer]
    while isinstance(found[-1].base_layer, ParamWrapper):
        found.append(found[-1].base_layer)
    return found


def factors_of(wrapper: ParamWrapper, adapter: str = "default") -> ExpertFactors:
    """Views of the weights of a wrapper, in which PEFT holds A as `[experts * rank, in]`, B as `[out, rank * experts]`
    with the expert as the faster index."""
    a, b = (half.get_parameter(f"{adapter}.weight") for half in (wrapper.lora_A, wrapper.lora_B))
    down = a.view(wrapper.num_experts, -1, a.shape[1])
    up = b.view(b.shape[0], -1, wrapper.num_experts).permute(2, 0, 1)
    return ExpertFactors(down, up, wrapper.scaling[adapter])


def compute_experts(model: torch.nn.Module) -> None:
    """Every module of adapted experts of `model` is computed as it says here."""
    inner = {id(module.base_layer) for module in model.modules() if isinstance(module, ParamWrapper)}
    for module in list(model.modules()):
        if type(module) is ParamWrapper and id(module) not in inner:
            module.__class__ = LoraExperts
