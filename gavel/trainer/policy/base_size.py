"""The bytes of a base model by its config alone, and whether they fit into memory.

Without this, a base that does not fit ends the process after minutes of loading: on Linux by a kill without a word.
"""

from typing import Any

import torch

from gavel.trainer.device_memory import GIB, DeviceMemory
from gavel.trainer.policy.loading import BaseModelError, auto_class


def storage_bytes(model: torch.nn.Module) -> int:
    """Of parameters and buffers; tied ones once."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum({id(each): each.nbytes for each in tensors}.values())


def check_room(base_model: str, config: Any, dtype: torch.dtype, device: str) -> None:
    """Raises `BaseModelError` when the weights in `dtype` are larger than the free memory of the device.

    Nothing is said of weights that are published quantized, whose size the config does not tell.
    """
    if getattr(config, "quantization_config", None) is not None:
        return
    with torch.device("meta"):
        needed = storage_bytes(auto_class(config).from_config(config, dtype=dtype))
    free = DeviceMemory(torch.device(device)).free()
    if needed > free:
        where = "of the GPU's memory is" if device == "cuda" else "of memory is"
        less = "" if dtype == torch.bfloat16 else " --set model.policy.dtype=bfloat16 and"
        raise BaseModelError(
            f"the weights of {base_model!r} take {needed / GIB:.1f} GiB in {str(dtype).removeprefix('torch.')}, and "
            f"{free / GIB:.1f} GiB {where} free",
            f"`gavel plan {base_model}` tells what fits;{less} --quantization 4bit need less.",
        )
