"""The adapter's dropout, which is drawn by a seed and active in an update's pass alone."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn import Dropout


@contextlib.contextmanager
def dropping_out(model: Any, seed: str) -> Iterator[None]:
    """The adapter of `model` drops out, if it has a dropout, as drawn by `seed`; other draws are unchanged."""
    adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
    layers = [each for module in adapted for each in module.lora_dropout.values() if isinstance(each, Dropout)]
    if not layers:
        yield
        return
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7]))
        for layer in layers:
            layer.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.eval()
