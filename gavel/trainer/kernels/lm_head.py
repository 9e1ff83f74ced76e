"""The vocabulary head in tiles: log-probs and entropies of given tokens, without a [S, V] tensor.

The head is frozen, so the backward pass needs one vector per position,
d logprob / d hidden = (W[target] - sum_v p_v W_v) / temperature. The sum is computed together with the normalizer while
a tile is in cache, which leaves two vocabulary products instead of three and also gives the entropy. The entropy's own
gradient, for those who ask, is one product more: -(sum_v p_v z_v W_v - E[z] sum_v p_v W_v) / temperature with logits z.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gavel.base.errors import GavelError
from gavel.trainer.kernels.attention_kernels import device_type

_CPU_TILE, _GPU_TILE = (512, 256), (4096, 32768)
"""Positions and vocabulary entries of a tile: sized for a core's cache, and for a GPU's occupancy."""
_CAPPED_ROWS = 128
"""Positions at once of a head with a bias or a cap, each with all logits of the vocabulary."""


class HeadError(GavelError):
    """The vocabulary head is not frozen."""


@dataclass(frozen=True, slots=True)
class LogitForm:
    """A model's map from hidden states to logits: logits = cap * tanh(scale * product / cap)."""

    scale: float = 1.0
    cap: float | None = None
    """None: scale * product."""

    def logits(self, products: torch.Tensor) -> torch.Tensor:
        scaled = products * self.scale if self.scale != 1 else products
        return scaled if self.cap is None else torch.tanh(scaled / self.cap) * self.cap


_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


def logit_form(config: Any) -> LogitForm:
    """By the config of a text model: the names are those of Cohere, Falcon-H1, HyperCLOVA, Granite, Gemma,
    RecurrentGemma and xLSTM."""
    scale = (getattr(config, "logit_scale", None) or 1.0) * (getattr(config, "lm_head_multiplier", None) or 1.0)
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale = scale * scaling if config.model_type == "hyperclovax" else scale / scaling
    caps = (getattr(config, name, None) for name in _CAPS)
    return LogitForm(scale, next((cap for cap in caps if cap), None))


def frozen_head(head: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a vocabulary head. Raises `HeadError` for one that is trained or quantized."""
    weight, bias = getattr(head, "weight", None), getattr(head, "bias", None)
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point() or weight.requires_grad:
        raise HeadError(
            "the vocabulary head is trained or quantized, which tiled scoring does not know",
            "Leave the head out of the adapter and of the quantization.",
        )
    return weight, bias


PLAIN = LogitForm()


def tiled_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperatures: torch.Tensor,
    bias: torch.Tensor | None = None,
    form: LogitForm = PLAIN,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of `targets` and entropies, in nats, at `temperatures`: each `[S]`, in at least single precision.

    `hidden` is `[S, H]`, `weight` `[V, H]`, `bias` `[V]`; these two take no gradient. The entropies carry one with
    `entropy_gradient` alone.
    """
    return _TiledLogprobs.apply(hidden, weight, targets, temperatures, bias, form, entropy_gradient)  # type: ignore[no-any-return]


def keep_logits_precise(model: Any) -> None:
    """Makes a model in lower precision give its logits in float32, the head's product unrounded as in `tiled_logprobs`.

    Only for a plain head; others stay as they are.
    """
    head: Any = model.get_output_embeddings()
    kind, weight = type(head), getattr(head, "weight", None)
    if kind is torch.nn.Linear and weight is not None and weight.dtype in (torch.bfloat16, torch.float16):
        head.forward = partial(_precise_head, head)


def _precise_head(head: torch.nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1])
    products = torch.cat([_precise_product(rows, part.T) for part in _parts(head.weight)], -1)
    if head.bias is not None:
        products += head.bias
    return products.view(*hidden.shape[:-1], -1)


class _TiledLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, targets: Any, temperatures: Any, bias: Any, form: LogitForm, wanted: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.empty(len(hidden), dtype=precise, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        directions = [torch.empty_like(hidden) for _ in range(1 + wanted)]
        score, rows = partial(_score_whole, bias=bias, form=form), _CAPPED_ROWS
        if bias is None and form.cap is None:
            score, rows, temperatures = _score_in_parts, _tile(hidden)[0], temperatures / form.scale
        for first in range(0, len(hidden), rows):
            tile = slice(first, first + rows)
            scale = 1 / temperatures[tile, None].to(precise)
            logprobs[tile], entropies[tile], *found = score(hidden[tile], weight, targets[tile], scale, wanted)
            for direction, part in zip(directions, found, strict=True):
                direction[tile] = part
        ctx.save_for_backward(*directions)
        if not wanted:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, of_entropies: torch.Tensor) -> Any:  # type: ignore[override]
        direction, *more = ctx.saved_tensors
        found = gradient[:, None] * direction
        for entropy_direction in more:
            found = found + of_entropies[:, None] * entropy_direction
        return found.to(direction.dtype), None, None, None, None, None, None


Scored = tuple[torch.Tensor, ...]
"""Log-probs and entropies of a tile of positions, `[R]`; their gradients to the hidden states, `[R, H]`, of which the
second is there where it is wanted."""


def _score_in_parts(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, scale: torch.Tensor, wanted: bool
) -> Scored:
    is_precise = hidden.dtype == scale.dtype
    plain = (hidden * scale, torch.ones_like(scale)) if is_precise else (hidden, scale)
    # Usual logits need no shift before exp, which saves two passes over the tile.
    shift = None
    sums = _exponential_sums(*plain, weight, shift, 1 + wanted)
    if not bool(((sums[0][0] > 1e-30) & (sums[0][0] < 1e30)).all()):
        tops = [_logits(*plain, part).amax(-1, keepdim=True) for part in _parts(weight)]
        shift = torch.cat(tops, -1).amax(-1, keepdim=True)
        sums = _exponential_sums(*plain, weight, shift, 1 + wanted)
    (total, mean), *moments = sums
    mean = mean / total  # the head's rows averaged by their probabilities
    normaliser = (total.log() if shift is None else shift + total.log())[:, 0]
    chosen = weight[targets].to(scale.dtype)
    scaled = plain[0] if is_precise else hidden.to(scale.dtype) * scale  # not before the sums, which need the memory
    logprobs = ((scaled * chosen).sum(-1) - normaliser).clamp_(max=0)  # rounding may exceed 0
    # The entropy's gradient is the covariance of logits and rows.
    of_entropies = [-(rows / total - logit / total * mean) * scale for logit, rows in moments]
    return logprobs, normaliser - (scaled * mean).sum(-1), (chosen - mean) * scale, *of_entropies


def _score_whole(
    hidden: Any, weight: Any, targets: Any, scale: Any, wanted: bool, *, bias: torch.Tensor | None, form: LogitForm
) -> Scored:
    """Scores over the whole vocabulary at once, for a head with a bias or a cap."""
    products = _product(hidden, weight.T)
    logits = form.logits(products if bias is None else products + bias)
    found = torch.log_softmax(logits * scale, -1)
    probabilities, chosen = found.exp(), targets[:, None]
    entropies = -(probabilities * found).sum(-1)
    slopes = scale * form.scale if form.cap is None else scale * form.scale * (1 - (logits / form.cap) ** 2)
    of_entropies = []
    if wanted:
        to_products = probabilities * (found + entropies[:, None]) * -slopes
        of_entropies = [_product(to_products.to(weight.dtype), weight)]
    to_products = probabilities.neg_().scatter_add_(-1, chosen, torch.ones_like(scale)) * slopes
    direction = _product(to_products.to(weight.dtype), weight)
    return found.gather(-1, chosen)[:, 0], entropies, direction, *of_entropies


def _exponential_sums(
    hidden: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor | None, count: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Over the vocabulary: of e = exp(logit - shift), and of e times the head's row. `[R, 1]`, `[R, H]`

    The second pair, if so many are wanted, has e times its exponent in place of e.
    """
    sums = [(torch.zeros_like(scale), torch.zeros_like(hidden, dtype=scale.dtype)) for _ in range(count)]
    for part in _parts(weight):
        exponents = _logits(hidden, scale, part)
        if shift is not None:
            exponents.sub_(shift)
        weights = exponents.exp() if count > 1 else exponents.exp_()
        for at, (total, rows) in enumerate(sums):
            weights = exponents.mul_(weights) if at else weights
            total.add_(weights.sum(-1, keepdim=True))
            _add_product(rows, weights, part)
    return sums


def _add_product(total: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> None:
    if other.dtype == total.dtype:
        total.addmm_(one, other)
    else:
        total += _precise_product(one.to(other.dtype), other)


def _logits(hidden: torch.Tensor, scale: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    if hidden.dtype == scale.dtype:  # scaled already
        return hidden @ part.T
    return _precise_product(hidden, part.T).mul_(scale)


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The product in at least single precision."""
    return one @ other if one.dtype in (torch.float32, torch.float64) else _precise_product(one, other)


def _precise_product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A product of half-precision factors, accumulated and returned in float32."""
    if device_type(one) == "cuda":
        return torch.mm(one, other, out_dtype=torch.float32)
    return one.float() @ other.float()


def _parts(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return weight.split(_tile(weight)[1])


def _tile(tensor: torch.Tensor) -> tuple[int, int]:
    return _CPU_TILE if device_type(tensor) == "cpu" else _GPU_TILE
