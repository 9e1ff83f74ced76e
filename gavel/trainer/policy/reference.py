"""The weights of another state of the adapter, for the reference of a divergence.

The reference is a list of tensors in the order of the policy's parameters, which `Policy.with_weights` puts in their
place for a pass: there is no second copy of the base.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gavel.base.errors import GavelError
from gavel.base.files import new_folder
from gavel.trainer.config import TrainConfig
from gavel.trainer.policy.adapter_file import FILES, AdapterFileError, read_adapter

if TYPE_CHECKING:
    from gavel.trainer.policy.policy import Policy

_SAME = "Train with the same rank and layers as it, or choose reference='base' or 'start'."


class ReferencePolicyError(GavelError):
    """The reference of a divergence cannot be used."""


def check_adapter(directory: Path) -> None:
    """Raises `ReferencePolicyError` when there is no PEFT adapter in `directory`."""
    missing = next((name for name in FILES if not (directory / name).is_file()), None)
    if missing is None:
        return
    newest = max((entry for entry in directory.glob("checkpoints/*") if (entry / FILES[1]).is_file()), default=None)
    raise ReferencePolicyError(
        f"the reference {str(directory)!r} is no directory of an adapter: it has no {missing}",
        f"Name a checkpoint of that run, such as {newest}."
        if newest
        else "Name 'base', 'start', a step of this run, or the directory of a checkpoint (runs/…/checkpoints/000010).",
    )


def keep_reference(run: Path, checkpoint: Callable[[int], Path], policy: "Policy", config: TrainConfig) -> Path:
    """The directory `reference/…` of a run with its copy of the reference, made when it is first asked for.

    `start` is the policy as it is at that moment. Checkpoints are deleted and other runs moved; the copy stays. Raises
    `ReferencePolicyError`.
    """
    source = config.reference_path
    if source is not None:
        name = kept_reference(run, source).name
    elif config.reference == "start":
        name = "start"
    else:
        source, name = checkpoint(int(config.reference)), f"step-{int(config.reference)}"
    kept = run / "reference" / name
    if kept.is_dir():
        return kept
    if source is not None and config.reference_path is None and not source.is_dir():
        raise ReferencePolicyError(
            f"the run has no checkpoint of step {config.reference}, which is to be the reference",
            "Name a step whose checkpoint is kept, the directory of another one, 'start' or 'base'.",
        )
    if source is not None:
        reference_weights(policy, source)  # what does not fit is not kept
    with new_folder(kept) as unfinished:
        if source is None:
            policy.save_adapter(unfinished)
        else:
            for file in FILES:
                shutil.copy2(source / file, unfinished / file)
    return kept


def kept_reference(run: Path, source: Path) -> Path:
    """Where a run keeps its copy of the reference that was the directory `source`."""
    return run / "reference" / f"path-{hashlib.sha256(os.path.abspath(source).encode()).hexdigest()[:16]}"


def reference_weights(policy: "Policy", directory: Path) -> list[torch.Tensor]:
    """The adapter in `directory` as the policy's parameters would hold it.

    Layers that it leaves alone get zeros; another scale goes into B. Raises `ReferencePolicyError`.
    """
    check_adapter(directory)
    try:
        adapter = read_adapter(directory, str(policy.device))
    except AdapterFileError as error:
        raise ReferencePolicyError(f"the reference {str(directory)!r} {error}", _SAME) from error
    weights = dict(adapter.weights)
    found: list[torch.Tensor] = []
    for name, parameter in policy.adapter_parameters():
        weight = weights.pop(name, None)
        if weight is None:
            weight = torch.zeros_like(parameter)
        elif weight.shape != parameter.shape:
            shapes = f"{list(weight.shape)} in place of {list(parameter.shape)}"
            raise ReferencePolicyError(f"the reference {str(directory)!r} does not fit: {name} is {shapes}", _SAME)
        weight = weight.to(parameter.dtype)
        found.append(weight * (adapter.scale / policy.lora_scale) if ".lora_B." in name else weight)
    if weights:
        more = next(iter(weights))
        raise ReferencePolicyError(f"the reference {str(directory)!r} does not fit: it has {more}, say", _SAME)
    return found
