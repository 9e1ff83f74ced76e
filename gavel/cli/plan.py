"""`gavel plan`: what a model needs of memory, and which options make it fit, by its config alone."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.options import Assignments, Flag, run_config, run_flags, settings_command
from gavel.cli.terminal import print_table, say
from gavel.trainer.run_config import RunConfig

if TYPE_CHECKING:
    from gavel.trainer.memory.plan import Device, MemoryPlan

FLAGS = [
    *run_flags("lora", "--max-staleness", "--max-context", "--engine", "--micro-batch-tokens"),
    *run_flags("--gradient-checkpointing", "--nproc", "--shard-base"),
]
_MODEL = Flag("model.base_model", "MODEL")
_GIB = 2**30
_USUAL_GPU = 80.0


def plan(
    model: Annotated[str, typer.Argument(help="A directory, a hub id, or a built-in one: embedded/returns-desk.")],
    values: Mapping[str, Any],
    gpu: Annotated[
        float | None, typer.Option(min=0, help="GiB; 0: this machine's CPU. Default: the GPU here, or 80.")
    ] = None,
    assignments: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON, in bytes.")] = False,
) -> None:
    """Show what a model needs of memory and what to set, before anything is loaded.

    Only the model's config is read. The options are those of `gavel train`. The exit status is 1 when it does not fit.
    """
    need_extra("train", "gavel plan")
    run = run_config("", {**values, _MODEL.key: model}, assignments, flags=[_MODEL, *FLAGS])
    from gavel.trainer.memory.plan import make_plan

    console = Console(stderr=True)
    with console.status("counting …"):
        found = make_plan(model, run, _device(gpu))
    typer.echo(json.dumps(asdict(found), indent=1)) if as_json else _print(Console(), found)
    raise typer.Exit(0 if found.fits else 1)


def _device(gpu: float | None) -> "Device":
    import torch

    from gavel.trainer.device_memory import DeviceMemory
    from gavel.trainer.memory.plan import Device

    if gpu is not None and not math.isfinite(gpu):
        raise typer.BadParameter(f"{gpu} is no number of GiB.", param_hint="--gpu")
    if gpu == 0:
        return Device("cpu", DeviceMemory(torch.device("cpu")).free())
    if gpu is None and torch.cuda.is_available():
        return Device("cuda", torch.cuda.mem_get_info()[1])
    return Device("cuda", round((gpu or _USUAL_GPU) * _GIB))


def _print(console: Console, plan: "MemoryPlan") -> None:
    def gib(count: int) -> str:
        return f"{count / _GIB:,.2f}" if count < 10 * _GIB else f"{count / _GIB:,.1f}"

    weights = f"{plan.quantization} and {plan.dtype}" if plan.quantization else plan.dtype
    device = "a GPU" if plan.device == "cuda" else "this CPU, with free memory"
    say(console, f"{plan.model} · {plan.family} · {_count(plan.parameters)} parameters in {weights}")
    if plan.published:
        say(
            console,
            f"Published quantized ({plan.published}), which its config gives no size for: counted as {plan.dtype}. "
            "The model that it was made of is the surer base; --quantization 4bit quantizes that here.",
        )
    lora = f"{_count(plan.adapter_parameters)} parameters on {plan.adapted_layers} layers"
    say(console, f"on {device} of {plan.device_bytes / _GIB:.0f} GiB · LoRA: {lora}\n")
    used = {True: "", False: " (not used)"}
    longest = f"{plan.longest:,} tokens"
    conversations = f"{counted(plan.conversations, 'conversation')} of {plan.context:,} tokens"
    needs = {
        "base, frozen": plan.base,
        "adapter, its gradient, AdamW": 4 * plan.adapter,
        f"sampler, {plan.sampler}: {conversations}": plan.sampler_bytes,
        f"learner, {longest}, with checkpointing{used[plan.checkpointing]}": plan.pass_checkpointed,
        f"learner, {longest}, without{used[not plan.checkpointing]}": plan.pass_whole,
        "all at once": plan.needed,
    }
    print_table(console, ("", "GiB"), [(what, gib(count)) for what, count in needs.items()], right=("GiB",))
    say(console, f"\nA conversation's cache: {gib(plan.cache_per_conversation)} GiB.")
    if plan.fits:
        how = f"{'with' if plan.checkpointing else 'without'} checkpointing"
        smaller = f"; passes of up to {plan.whole_pass_tokens:,} without" if plan.whole_pass_tokens else ""
        return say(console, f"It fits, {how} and micro-batches of {plan.micro_batch_tokens:,} tokens{smaller}.")
    from gavel.trainer.memory.plan import size

    say(console, f"It does not fit: {size(plan.missing)} missing. What helps:")
    for remedy in plan.remedies:
        say(console, f"  {remedy}")


def _count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


app = settings_command(plan, RunConfig, FLAGS)
