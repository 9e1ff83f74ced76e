"""The README.md of a checkpoint: what was trained, by which judge and rubric, and how it went.

Its head is the metadata that the Hugging Face hub reads. A run that was not made by `train_scenario` has no task and no
judge on its card, since only its steps are known.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from huggingface_hub import (
    ModelCardData,
    metadata_load,  # pyright: ignore[reportUnknownVariableType]
    try_to_load_from_cache,
)
from huggingface_hub.errors import HFValidationError
from jinja2 import Environment, StrictUndefined

from gavel.judge.rubric import Rubric
from gavel.trainer.runs.checkpoints import CARD

_TEMPLATE = Path(__file__).with_suffix(".md.j2")
_CURVE_POINTS = 12
_SPLITS = {"held_out": "held-out tasks", "train": "the groups of each step"}
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
    license_name, loss = base_license(base), experiment.get("training", {}).get("loss")
    head = ModelCardData(
        base_model=None if Path(base).is_dir() else base,
        library_name="peft" if merged is None else "transformers",
        license=license_name,
        pipeline_tag="text-generation",
        tags=["gavel", "grpo", "lora", "reinforcement-learning"],
    )
    split, figure, curve = _curve([row for row in rows if row["step"] <= step])
    made = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    return made.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        head=head,
        description=description,
        experiment=experiment,
        rubric=Rubric.of(experiment["rubric"]) if "judge" in experiment else None,
        loss=loss and json.dumps(loss),
        license=license_name,
        start=description.get("from_checkpoint"),
        step=step,
        merged=merged,
        of=_SPLITS[split],
        figure=figure,
        curve=curve,
    )


def base_license(base: str) -> str | None:
    """The license in the base model's card, if that is in its directory or in the Hub's cache; downloads nothing."""
    try:
        file = str(Path(base, CARD)) if Path(base).is_dir() else try_to_load_from_cache(base, CARD)
        if not isinstance(file, str) or not Path(file).is_file():
            return None
        name = cast("dict[str, Any]", metadata_load(file) or {}).get("license")
    except (HFValidationError, OSError, ValueError, yaml.YAMLError):
        return None
    return name if isinstance(name, str) else None


def _curve(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str, list[tuple[int, float]]]:
    """The split and the figure of the learning curve, and at most `_CURVE_POINTS` of its steps, evenly spaced, the
    first and the last included."""
    for split, figure in ((split, figure) for split in _SPLITS for figure in _FIGURES):
        of_split = [row for row in rows if row["split"] == split]
        found = sorted(
            {row["step"]: row[figure] for row in of_split if isinstance(row.get(figure), int | float)}.items()
        )
        if count := min(len(found), _CURVE_POINTS):
            return split, figure, [found[at * (len(found) - 1) // max(1, count - 1)] for at in range(count)]
    return "train", "reward", []
