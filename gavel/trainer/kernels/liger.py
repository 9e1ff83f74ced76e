"""A decoder's elementwise layers by Liger's Triton kernels (arXiv 2410.10989): RMS norms, RoPE and SwiGLU.

A module is taken where a trial finds values and gradients equal to its own up to rounding; all others stay as they are.
Norms and RoPE are computed in float32 and rounded once, so they are nearer to the float32 value than transformers' own.
Only the instances of this model change: another instance of the same class keeps its own functions.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.autograd.graph import increment_version

from gavel.base.errors import GavelError
from gavel.trainer.config import PolicySettings
from gavel.trainer.kernels.fused_layers import LoraWeights, computes_y, gated_forward

_ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 0.005}
"""Largest difference by type, as a share of the largest value: transformers round intermediate results too."""
_ROPE = "apply_rotary_pos_emb"
"""Name of the function in transformers' modules."""
_OFF = "Leave use_liger_kernel out of PolicySettings: PyTorch computes what Liger cannot."

Tensors = tuple[torch.Tensor, ...]
Forward = Callable[..., Any]


class LigerError(GavelError):
    """Liger's kernels cannot run here, or have nothing to compute in this model."""


def liger_is_used(settings: PolicySettings, device: str, sharded: bool) -> bool:
    """By the setting; where it is open, wherever the kernels can run.

    Raises `LigerError` when they are asked for without a GPU, without the package, or beside another loader's kernels.
    """
    asked, installed = settings.use_liger_kernel, importlib.util.find_spec("liger_kernel") is not None
    if asked is None:
        plain = settings.loader == "peft" and settings.quantization is None and not sharded
        return plain and device == "cuda" and installed
    if asked and settings.loader == "unsloth":
        raise LigerError(
            "loader='unsloth' brings kernels of its own, which use_liger_kernel would replace",
            "Leave one of the two out of PolicySettings.",
        )
    if asked and device != "cuda":
        raise LigerError("use_liger_kernel needs a CUDA device, and there is none", _OFF)
    if asked and not installed:
        raise LigerError(
            "use_liger_kernel needs the package liger-kernel, which is not installed",
            f"pip install liger-kernel. {_OFF}",
        )
    return asked


def use_liger(model: Any, *, least: bool = True) -> dict[str, int]:
    """Replaces what Liger computes equally, and returns how many norms, ropes and mlps that are.

    Call it after `fuse_norms` and `fuse_mlps`, and before layers become LoRA layers. `least`: raises `LigerError` when
    it replaces nothing.
    """
    found = {"norms": 0, "ropes": 0, "mlps": 0}
    if model.dtype not in _ROUNDING:
        if least:
            raise LigerError(f"Liger's kernels do not compute in {model.dtype}", _OFF)
        return found
    with torch.enable_grad():
        for module in list(model.modules()):
            for name, find in (("norms", _find_norm), ("ropes", _find_rope), ("mlps", _find_mlp)):
                forward = find(module, model.dtype, model.device)
                if forward is not None:
                    module.forward = forward
                    found[name] += 1
    if least and not any(found.values()):
        raise LigerError(f"Liger's kernels compute nothing of {model.config.model_type} as its own modules do", _OFF)
    return found


def _find_norm(module: Any, dtype: torch.dtype, device: torch.device) -> Forward | None:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(epsilon, float):
        return None
    if not isinstance(weight, torch.nn.Parameter) or weight.dtype not in _ROUNDING:
        return None
    trial = torch.linspace(-3, 4, 3 * len(weight), dtype=weight.dtype, device=device).view(1, 3, -1)
    kept = weight.detach().clone()
    weight.detach().copy_(torch.linspace(0.5, 2, len(weight)))  # neither 0 nor constant
    forms = (partial(_norm, module, epsilon, offset) for offset in (0.0, 1.0))  # Gemma's weight is one less
    found = next((form for form in forms if _equal(module, form, [trial])), None)
    weight.detach().copy_(kept)
    return found


def _norm(module: Any, epsilon: float, offset: float, hidden: torch.Tensor) -> torch.Tensor:
    # Not in place: a residual stream may read the same gradient.
    return _function("rms_norm", "LigerRMSNormFunction").apply(hidden, module.weight, epsilon, offset, "gemma", False)


def _find_rope(module: Any, dtype: torch.dtype, device: torch.device) -> Forward | None:
    """A forward of the same code that finds Liger's function by the name of transformers'."""
    forward: Any = inspect.unwrap(type(module).forward)  # of what renames its arguments
    size = getattr(module, "head_dim", None)
    if _ROPE not in getattr(getattr(forward, "__code__", None), "co_names", ()) or not isinstance(size, int):
        return None
    own = forward.__globals__[_ROPE]
    if not _is_same_rotation(own, size, dtype, device):
        return None
    names = forward.__globals__ | {_ROPE: partial(_rotate, own)}
    found = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    found.__kwdefaults__ = forward.__kwdefaults__
    return MethodType(found, module)


@cache
def _is_same_rotation(own: Any, size: int, dtype: torch.dtype, device: torch.device) -> bool:
    if list(inspect.signature(own).parameters)[:4] != ["q", "k", "cos", "sin"]:
        return False
    angles = torch.linspace(0, 3, 3 * (size // 2), device=device).view(1, 3, -1)
    cos, sin = (torch.cat([each, each], -1).to(dtype) for each in (angles.cos(), angles.sin()))
    query, key = (
        torch.linspace(-2, 3, heads * 3 * size, dtype=dtype, device=device).view(1, 3, heads, size).transpose(1, 2)
        for heads in (4, 2)
    )
    return _equal(lambda *qk: own(*qk, cos, sin), lambda *qk: _rotate(own, *qk, cos, sin), [query, key])


def _rotate(
    own: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **kwargs: Any
) -> Tensors:
    if args or kwargs or cos.shape[-1] != q.shape[-1] or cos.dim() != 3:
        return own(q, k, cos, sin, *args, **kwargs)
    # The kernel computes in the type of cosine and sine.
    return _Rope.apply(q, k, cos.float(), sin.float())  # type: ignore[no-any-return]


class _Rope(torch.autograd.Function):
    """Liger's own writes over queries, keys and their gradients, which others may still read; this one over copies."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        ctx.save_for_backward(cos, sin)
        return _function("rope", "rope_forward")(_copy(q), _copy(k), cos, sin)[:2]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key = (_copy(gradient) for gradient in gradients)
        return *_function("rope", "rope_backward")(query, key, *ctx.saved_tensors), None, None


def _copy(heads: torch.Tensor) -> torch.Tensor:
    """`[rows, heads, U, D]`, in memory as `[rows, U, heads, D]`."""
    return heads.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


def _find_mlp(module: Any, dtype: torch.dtype, device: torch.device) -> Forward | None:
    layers: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not type(module).__name__.endswith("MLP") or not all(isinstance(layer, torch.nn.Linear) for layer in layers):
        return None
    trial = torch.linspace(-3, 4, 2 * layers[0].in_features, dtype=dtype, device=device).view(1, 2, -1)
    own = partial(_gated, module)
    if not computes_y(module, dtype, device) or not _equal(module, own, [trial]):
        return None
    return partial(gated_forward, module, own, _LigerGatedLora)


def _gated(module: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = module.gate_proj(x), module.up_proj(x)
    return module.down_proj(_function("swiglu", "LigerSiLUMulFunction").apply(gate, up))


class _LigerGatedLora(torch.autograd.Function):
    """The gated LoRA product of `fused_layers`. The gradients of gate x and up x overwrite these."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any, *layer: Any) -> torch.Tensor:
        weights = LoraWeights(*layer)
        result, narrow = weights.product(_product(gate, up))
        ctx.save_for_backward(gate, up, weights.weight, weights.down, weights.up, narrow)
        ctx.scale = weights.scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        gate, up, weight, lora_down, lora_up, narrow = ctx.saved_tensors
        weights = LoraWeights(weight, None, lora_down, lora_up, ctx.scale)
        incoming = gradient.flatten(0, -2)
        to_narrow = weights.to_narrow(incoming)
        to_factors = weights.to_factors(_product(gate, up).flatten(0, -2), narrow, incoming, to_narrow)
        to_product = weights.to_rows(incoming, to_narrow).view_as(gate)
        to_gate, to_up = _function("swiglu", "swiglu_backward")(gate, up, to_product)
        increment_version([gate, up])  # a second backward pass fails instead of being wrong
        return to_gate, to_up, None, None, *to_factors, None


def _product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _function("swiglu", "swiglu_forward")(gate, up)[2]


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)


def _equal(own: Callable[..., Any], other: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether values and gradients of two functions are the same, up to rounding in their type."""
    pairs = zip(_values_and_gradients(own, inputs), _values_and_gradients(other, inputs), strict=True)
    return all(
        one.dtype == two.dtype and bool((one - two).abs().max() <= _ROUNDING[one.dtype] * one.abs().max())
        for one, two in pairs
    )


def _values_and_gradients(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Tensors:
    leaves = [each.clone().requires_grad_() for each in inputs]
    found = function(*leaves)
    values: Tensors = found if isinstance(found, tuple) else (found,)
    incoming = [torch.linspace(1, -2, v.numel(), dtype=v.dtype, device=v.device).view(v.shape) for v in values]
    return *(value.detach() for value in values), *torch.autograd.grad(values, leaves, incoming)
