"""The README.md of a checkpoint: what was trained, by which judge and rubric, and how it went.

Its head is the metadata that the Hugging Face hub reads. A run that was not made by `train_scenario` has no task and no
judge on its card, since only its steps are known.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import yaml
from huggingface_hub import (
    ModelCardData,
    metadata_load,  # pyright: ignore[reportUnknownVariableType]
    try_to_load_from_cache,
)
from huggingface_hub.errors import HFValidationError

from gavel.judge.rubric import Rubric
from gavel.trainer.runs.checkpoints import CARD

_CURVE_POINTS = 12
_FIGURES = ("success", "reward", "judge_score")
"""Metrics for the learning curve, by preference: the first that was measured is drawn."""


def model_card(
    description: Mapping[str, Any],
    experiment: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    step: int,
    base: str,
    merged: str | None = None,
) -> str:
    """The card of the checkpoint of `step`, in Markdown; with `merged`, what is said of merged weights, that of these.

    `description` and `experiment` as in model.json and experiment.json, the latter empty where there is none; `rows` of
    metrics.jsonl; `base` is the base model's directory or its id on the hub.
    """
    local, license_name = Path(base).is_dir(), base_license(base)
    head = ModelCardData(
        base_model=None if local else base,
        library_name="peft" if merged is None else "transformers",
        license=license_name,
        pipeline_tag="text-generation",
        tags=["gavel", "grpo", "lora", "reinforcement-learning"],
    )
    base_model = description["base_model"]
    adapter = f"LoRA adapter (rank {description['lora']['rank']})"
    what = f"A {adapter} of `{base_model}`" if merged is None else f"`{base_model}` with a {adapter} merged into it"
    start: Mapping[str, Any] = description.get("from_checkpoint") or {}
    began = f"`{start['run']}`, step {start['step']}" if "run" in start else f"`{start['named']}`" if start else ""
    lines = [
        f"# {description['name']}, step {step}",
        "",
        f"{what}, trained with Gavel on scores that a judge gave to groups of attempts.",
        *(["", merged] if merged else []),
        *(["", f"Its step 0 is the adapter of {began}."] if began else []),
        "",
        f"- Licence of the base model: {license_name or 'not known here; it holds for the adapter too'}",
        *_experiment_lines(experiment),
        *_curve_lines(rows, step),
    ]
    return f"---\n{head}\n---\n\n" + "\n".join(lines) + "\n"


def base_license(base: str) -> str | None:
    """The license in the base model's card, if that is in its directory or in the Hub's cache; downloads nothing."""
    try:
        file = str(Path(base, CARD)) if Path(base).is_dir() else try_to_load_from_cache(base, CARD)
        if not isinstance(file, str) or not Path(file).is_file():
            return None
        found = cast("dict[str, Any]", metadata_load(file) or {})
    except (HFValidationError, OSError, ValueError, yaml.YAMLError):
        return None
    name = found.get("license")
    return name if isinstance(name, str) else None


def _experiment_lines(experiment: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "scenario" in experiment:
        lines.append(f"- Task: the scenario `{experiment['scenario']}`")
    if "judge" in experiment:
        judges = ", ".join(f"`{name}`" for name in experiment["judge"])
        lines.append(f"- Judge: {judges}; every group in {experiment['orders']} orders")
        lines.append(f"- Rubric: `{Rubric.of(experiment['rubric']).id}`")
    training = experiment.get("training", {})
    if "loss" in training:
        lines.append(f"- Loss: `{json.dumps(training['loss'])}`, learning rate {training['learning_rate']:g}")
    return lines


def _curve_lines(rows: Sequence[Mapping[str, Any]], step: int) -> list[str]:
    """A table of at most `_CURVE_POINTS` steps, evenly spaced, the first and the last included."""
    for (split, of), figure in product(
        (("held_out", "held-out tasks"), ("train", "the groups of each step")), _FIGURES
    ):
        of_split = [row for row in rows if row["split"] == split and row["step"] <= step]
        points = {row["step"]: row[figure] for row in of_split if isinstance(row.get(figure), int | float)}
        count = min(len(points), _CURVE_POINTS)
        steps = [sorted(points)[at * (len(points) - 1) // max(1, count - 1)] for at in range(count)]
        if steps:
            table = [f"| {at} | {points[at]:.3f} |" for at in steps]
            return ["", f"Mean `{figure}` on {of}:", "", f"| step | {figure} |", "|---|---|", *table]
    return []
