"""Sharding a frozen base over processes (FSDP2), for bases that do not fit one device.

Each process keeps a part of every decoder layer and gathers a layer while it is computed; so all processes must make
the same number of passes. The adapter, the embeddings and the vocabulary head are replicated, so updates are
unchanged.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer


def shard_layers(model: torch.nn.Module, decoder: torch.nn.Module, device: str) -> None:
    """Shards the decoder's layers of `model` over all processes (FSDP2) and moves it to `device`, layer by layer."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layers = [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]
    frozen = {p for layer in layers for p in layer.parameters() if not p.requires_grad}
    whole = {p for p in model.parameters() if p not in frozen}
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
    fully_shard(
        decoder, mesh=mesh, ignored_params=whole
    )  # it has no parameters of its own, but sets the order of the layers
    for tensor in (*whole, *model.buffers()):
        tensor.data = tensor.data.to(device)
