"""Layers of the learner as single autograd functions, which keep fewer activations and make fewer passes.

    gated MLP     y = down(silu(gate x) * up x): keeps gate x and up x of the four wide activations; the same bits
    LoRA linear   y = x W' + s (x A') B', added in place to the base's result: PEFT's layer, weights and names
    RMS norm      PyTorch's fused operation in place of the six of transformers

In lower precision A and B are rounded to the activations' type, and y once more than the base's result, as in the
embedded engine. The fused norm rounds once where transformers round twice, so it is nearer to float32.

LoRA over the stacked weights of a mixture's experts gives each expert factors of its own:

    y[t] = sum over the chosen e of share[t, e] * down_e(gate(up_e(x[t]))),    W_e + scale * B_e A_e for each W_e

`LoraExperts` is a subclass of PEFT's wrapper of a parameter with the same weights, names and values. PEFT's own forward
makes the adapted weights of all experts, and their gradients, at every pass; here each token meets the factors of its
experts alone. The embedded engine computes the same product, so learner and sampler round alike.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from peft.tuners import lora
from peft.tuners.lora import ParamWrapper
from torch import nn
from torch.nn.functional import grouped_mm, pad, silu


class LoraWeights(NamedTuple):
    """y = x weight' + bias + scale (x down') up', and its gradients. Rows are `[R, in]`, `narrow` `[R, rank]`."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    down: torch.Tensor
    up: torch.Tensor
    scale: float

    def product(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """y, with the axes of `x`, and `narrow`, the rows of `x` in the adapter's rank."""
        rows = x.reshape(-1, x.shape[-1])
        narrow = rows @ self.down.T.to(rows.dtype)
        result = nn.functional.linear(x, self.weight, self.bias)  # not a view: some models change it in place
        result.view(len(rows), -1).addmm_(narrow, self.up.T.to(rows.dtype), alpha=self.scale)
        return result, narrow

    def to_narrow(self, incoming: torch.Tensor) -> torch.Tensor:
        return incoming @ self.up.to(incoming.dtype) * self.scale

    def to_rows(self, incoming: torch.Tensor, to_narrow: torch.Tensor) -> torch.Tensor:
        return (incoming @ self.weight).addmm_(to_narrow, self.down.to(incoming.dtype))

    def to_factors(self, rows: Any, narrow: Any, incoming: Any, to_narrow: Any) -> tuple[torch.Tensor, torch.Tensor]:
        to_down = (to_narrow.T @ rows).to(self.down.dtype)
        # On a CPU three times as fast as the transposed product.
        to_up = (narrow.T @ incoming).T.to(self.up.dtype) * self.scale
        return to_down, to_up


class LoraLinear(lora.Linear):
    """PEFT's layer, with its own forward for the case that is trained here."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        weights = None if args or kwargs else self.plain_weights()
        return super().forward(x, *args, **kwargs) if weights is None else _LoraLinear.apply(x, *weights)  # type: ignore[no-any-return]

    def plain_weights(self) -> LoraWeights | None:
        """The layer's weights if it is a plain linear layer with one active adapter and no dropout, else None."""
        base = self.get_base_layer()
        if self.disable_adapters or self.merged or type(base) is not nn.Linear or len(self.active_adapters) != 1:
            return None
        name = self.active_adapters[0]
        dropout = self.lora_dropout[name] if name in self.lora_A else None
        if dropout is None or name in self.lora_variant or (dropout.training and not isinstance(dropout, nn.Identity)):
            return None
        down, up = (half.get_parameter(f"{name}.weight") for half in (self.lora_A, self.lora_B))
        return LoraWeights(base.weight, base.bias, down, up, self.scaling[name])


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, *layer: Any) -> torch.Tensor:
        weights = LoraWeights(*layer)
        result, narrow = weights.product(x)
        ctx.save_for_backward(x.reshape(-1, x.shape[-1]), weights.weight, weights.down, weights.up, narrow)
        ctx.shape, ctx.scale = x.shape, weights.scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        rows, weight, down, up, narrow = ctx.saved_tensors
        weights = LoraWeights(weight, None, down, up, ctx.scale)
        incoming = gradient.reshape(-1, gradient.shape[-1])
        to_narrow = weights.to_narrow(incoming)
        to_x = weights.to_rows(incoming, to_narrow).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return to_x, None, None, *weights.to_factors(rows, narrow, incoming, to_narrow), None


_SAME = 1e-6


def fuse_norms(model: Any, *, exact: bool = True) -> int:
    """Replaces the norms of `model` that equal PyTorch's `rms_norm` in float32; returns how many.

    In lower precision it must be no further from the float32 value than the norm was. `exact`: in float32 bit-identical
    to before on a CPU. Otherwise equal within rounding, with half as many passes over memory as
    PyTorch's, where no gradient is needed. Equality is tested by running the module, since model families differ in
    where the weight is applied and in rounding.
    """
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    return sum(_fuse_norm(module, _rms_norm if exact else _few_passes) for module in norms)


@torch.no_grad()
def _fuse_norm(module: Any, norm: Callable[[Any, float, torch.Tensor], torch.Tensor]) -> bool:
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(weight, torch.nn.Parameter) or not isinstance(epsilon, float):
        return False
    trial = torch.linspace(-3, 4, 2 * len(weight), dtype=weight.dtype, device=weight.device).view(2, -1)
    kept = weight.clone()
    weight.copy_(torch.linspace(0.5, 2, len(weight)))  # neither 0 nor constant
    found, own = _rms_norm(module, epsilon, trial), module(trial)
    precise = copy.deepcopy(module).float()
    truth = precise(trial.float())
    same = (_rms_norm(precise, epsilon, trial.float()) - truth).abs().max() <= _SAME
    if weight.dtype != torch.float32:
        errors = [(each - truth).abs().mean() for each in (found, own)]
        same &= found.dtype == own.dtype and errors[0] <= errors[1] + _SAME
    weight.copy_(kept)
    if same:
        module.forward = partial(norm, module, epsilon)
    return bool(same)


def _rms_norm(module: Any, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    weight: torch.Tensor = module.weight
    plain = hidden.dtype == weight.dtype and hidden.dtype in (torch.float32, torch.float64) and not hidden.is_cuda
    if plain and hidden.requires_grad and torch.is_grad_enabled() and not weight.requires_grad:
        return _FrozenRmsNorm.apply(hidden, weight, epsilon)  # type: ignore[no-any-return]
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)


class _FrozenRmsNorm(torch.autograd.Function):
    """PyTorch's value, and its gradient to x in four passes in place of a pass for each of its operations.

    With r = (mean x² + ε)^(-1/2) and g the gradient times the weight: r g - r³ mean(g x) x.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.epsilon = epsilon
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        hidden, weight = ctx.saved_tensors
        size = hidden.shape[-1]
        scale = _inverse_length(hidden, ctx.epsilon)
        weighted = gradient * weight
        along = (weighted * hidden).sum(-1, keepdim=True).mul_(scale**3).div_(-size)
        return weighted.mul_(scale).addcmul_(hidden, along), None, None


def _inverse_length(hidden: torch.Tensor, epsilon: float) -> torch.Tensor:
    """(mean x² + ε)^(-1/2) of each row, `[..., 1]`."""
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    return length.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()


def _few_passes(module: Any, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.is_cuda or hidden.dtype != torch.float32 or torch.is_grad_enabled():
        return _rms_norm(module, epsilon, hidden)
    return (hidden * _inverse_length(hidden, epsilon)).mul_(module.weight)


_LAYERS = ("gate_proj", "up_proj", "down_proj")


def fuse_mlps(model: Any) -> int:
    """Replaces the MLPs of `model` that compute y; returns how many. Call it before layers become LoRA layers.

    Whether a module computes y is tested by running it. Where `down` is another layer than a plain `LoraLinear`, the
    module's own forward runs.
    """
    found = 0
    for module in (each for each in model.modules() if type(each).__name__.endswith("MLP")):
        plain = all(type(getattr(module, name, None)) is nn.Linear for name in _LAYERS)
        if plain and computes_y(module, module.gate_proj.weight.dtype, module.gate_proj.weight.device):
            module.forward = partial(gated_forward, module, module.forward, _GatedLora)
            found += 1
    return found


@torch.no_grad()
def computes_y(module: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the result of a module with these three layers is y, bit for bit."""
    columns: int = module.gate_proj.in_features
    trial = torch.linspace(-3, 4, 2 * columns, dtype=dtype, device=device).view(2, columns)
    return torch.equal(module.down_proj(silu(module.gate_proj(trial)) * module.up_proj(trial)), module(trial))


def gated_forward(module: Any, own: Any, gated: type[torch.autograd.Function], x: torch.Tensor) -> torch.Tensor:
    """y by `gated` of gate x, up x and the weights of `down`; by `own(x)` where `down` is not a plain `LoraLinear`."""
    down = module.down_proj
    weights = down.plain_weights() if isinstance(down, LoraLinear) else None
    if weights is None:
        return own(x)
    return gated.apply(module.gate_proj(x), module.up_proj(x), *weights)  # type: ignore[no-any-return]


class _GatedLora(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any, *layer: Any) -> torch.Tensor:
        weights = LoraWeights(*layer)
        result, narrow = weights.product(silu(gate).mul_(up))
        ctx.save_for_backward(gate, up, weights.weight, weights.down, weights.up, narrow)
        ctx.scale = weights.scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        gate, up, weight, lora_down, lora_up, narrow = ctx.saved_tensors
        weights = LoraWeights(weight, None, lora_down, lora_up, ctx.scale)
        incoming = gradient.flatten(0, -2)
        to_narrow = weights.to_narrow(incoming)
        opened = silu(gate)
        to_factors = weights.to_factors((opened * up).flatten(0, -2), narrow, incoming, to_narrow)
        to_product = weights.to_rows(incoming, to_narrow).view_as(gate)
        to_gate = torch.ops.aten.silu_backward(to_product * up, gate)
        return to_gate, opened.mul_(to_product), None, None, *to_factors, None


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
    experts: Any, factors: Mapping[str, ExpertFactors], hidden_states: Any, top_k_index: Any, top_k_weights: Any
) -> torch.Tensor:
    """The output of `experts` with `factors` applied to the weights that these name.

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
    experts: Any, name: str, factors: Mapping[str, ExpertFactors], rows: Any, chosen: torch.Tensor, ends: torch.Tensor
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
        wrappers: list[ParamWrapper] = [self]  # PEFT wraps each weight around the wrapper of the one before
        while isinstance(wrappers[-1].base_layer, ParamWrapper):
            wrappers.append(wrappers[-1].base_layer)
        if any(each.disable_adapters or each.merged or len(each.active_adapters) != 1 for each in wrappers):
            return super().forward(*args, **kwargs)
        factors = {each.parameter_name: factors_of(each) for each in wrappers}
        return adapted_experts(self.get_base_layer(), factors, *args, **kwargs)


def factors_of(wrapper: ParamWrapper, adapter: str = "default") -> ExpertFactors:
    """Views of the weights of a wrapper, in which PEFT holds A as `[experts * rank, in]`, B as `[out, rank * experts]`
    with the expert as the faster index."""
    a, b = (half.get_parameter(f"{adapter}.weight") for half in (wrapper.lora_A, wrapper.lora_B))
    down = a.view(wrapper.num_experts, -1, a.shape[1])
    up = b.view(b.shape[0], -1, wrapper.num_experts).permute(2, 0, 1)
    return ExpertFactors(down, up, wrapper.scaling[adapter])


def compute_experts(model: torch.nn.Module) -> None:
    """Replaces the forward pass of all modules of adapted experts of `model` by this module's."""
    inner = {id(module.base_layer) for module in model.modules() if isinstance(module, ParamWrapper)}
    for module in list(model.modules()):
        if type(module) is ParamWrapper and id(module) not in inner:
            module.__class__ = LoraExperts
