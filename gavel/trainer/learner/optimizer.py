"""The optimizer of a name: AdamW, its state in single precision or in 8 bits by bitsandbytes (arXiv 2110.02861)."""

import importlib
from collections.abc import Sequence
from typing import Any, Literal

import torch

from gavel.base.errors import GavelError

OptimizerName = Literal["adamw", "adamw_8bit"]


class OptimizerError(GavelError):
    """An optimizer cannot be used here, or not in the middle of a run."""


def make_optimizer(name: OptimizerName, groups: Sequence[Sequence[torch.nn.Parameter]]) -> torch.optim.Optimizer:
    """The optimizer of `name` over groups of parameters; rates and decays are set before every update.

    Tensors of fewer than 4096 numbers, which 8 bits would hardly shrink, stay in single precision. Raises
    `OptimizerError` without bitsandbytes.
    """
    parameters = [{"params": list(group)} for group in groups]
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)
    try:
        bitsandbytes: Any = importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise OptimizerError(
            f"optimizer='adamw_8bit' needs bitsandbytes, which cannot be imported: {error}",
            "pip install bitsandbytes (the extra gpu brings it), or choose the optimizer adamw.",
        ) from error
    return bitsandbytes.optim.AdamW8bit(parameters, lr=0.0, weight_decay=0.0)


def check_optimizer(asked: OptimizerName, current: OptimizerName, *, begun: bool) -> None:
    """Raises `OptimizerError` where a run that has `begun` asks for another optimizer, or `asked` is not installed."""
    if asked == current:
        return
    if begun:
        raise OptimizerError(
            f"the run was begun with the optimizer {current}, and its state does not fit {asked}",
            f"Go on with optimizer={current!r} (supervised steps, too), or give the new run another name.",
        )
    make_optimizer(asked, [[torch.nn.Parameter(torch.zeros(1))]])
