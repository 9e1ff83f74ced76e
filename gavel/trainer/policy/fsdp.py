"""Sharding a frozen base over processes (FSDP2), for bases that do not fit one device.

Each process reads its part of every decoder layer from the checkpoint, keeps it, and gathers a layer while it is
computed; so all processes must make the same number of passes. The adapter, the embeddings and the vocabulary head are
replicated, so updates are unchanged.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from gavel.trainer.policy.loading import model_class, text_decoder


def sharded_base(source: str, config: Any, dtype: torch.dtype, device: str) -> Any:
    """The base model of `source`, frozen, whose decoder layers are sharded over all processes.

    Its layers are sharded while they have no storage, so transformers reads of each tensor what this process keeps.
    Raises OSError or ValueError when there is no such model.
    """
    kind, config = model_class(config)

    def on_meta(model: Any, *arguments: Any, **options: Any) -> None:
        kind.__init__(model, *arguments, **options)
        _shard_layers(model.requires_grad_(False), device)

    sharding = type(kind.__name__, (kind,), {"__init__": on_meta, "__module__": kind.__module__})
    model: Any = sharding.from_pretrained(source, config=config, dtype=dtype, device_map=_own(device))
    model.__class__ = kind
    return model


def _own(device: str) -> str:
    return f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device


def _shard_layers(model: Any, device: str) -> None:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    decoder = text_decoder(model)
    layers = _layers(decoder)
    whole = set(model.parameters()) - {p for layer in layers for p in layer.parameters()}
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
    fully_shard(
        decoder, mesh=mesh, ignored_params=whole
    )  # it has no parameters of its own, but sets the order of the layers


def whole_parts(model: Any) -> Iterator[torch.nn.Module]:
    """Every layer of a sharded base while its weights are whole, in all processes at once; then what is not sharded."""
    layers = _layers(text_decoder(model))
    for layer in layers:
        layer.unshard()
        yield layer
        layer.reshard()
    inside = {module for layer in layers for module in layer.modules()}
    yield torch.nn.ModuleList(each for each in model.modules() if each not in inside and not [*each.children()])


def _layers(decoder: Any) -> list[Any]:
    return [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]
