"""A run's policy as a directory that other programs load: merged weights, or the adapter alone.

    export_run(Path("runs/desk/qwen"), "merged")        runs/desk/qwen/exports/000030-merged-bfloat16

It reads the run directory alone, so a run may be training meanwhile. The directory appears under its name only when it
is whole, and nothing is ever written over; the same export again returns what is there.
"""

import json
import shutil
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from gavel.trainer.config import ExportDtype, ExportForm, PolicySettings
from gavel.trainer.policy.merged_model import export_dtype, write_merged
from gavel.trainer.policy.policy import source_of
from gavel.trainer.runs.checkpoints import (
    CARD,
    EXPORT_MARK,
    Checkpoints,
    ExportError,
    new_export,
    occupied_error,
    read_export_mark,
)
from gavel.trainer.runs.metrics import read_rows
from gavel.trainer.runs.model_card import model_card
from gavel.trainer.runs.run_directory import START, RunDirectoryError, check_format_version, read_description

EXPORTS = "exports"
_OF_THE_CHECKPOINT = ("manifest.json", "trainer_state")
"""Checkpoint files that only the trainer needs; exports leave them out."""


def export_run(
    run: Path,
    form: ExportForm = "merged",
    *,
    dtype: ExportDtype = "auto",
    step: int | None = None,
    out: Path | None = None,
) -> Path:
    """Writes the policy of `step` (default: the newest) and returns its directory.

    `out` defaults to a directory under `exports` of the run. Raises `ExportError` when something else is there, and
    `RunDirectoryError` for a run or step that is not there.
    """
    if form not in get_args(ExportForm) or dtype not in get_args(ExportDtype):
        raise ExportError(
            f"there is no export {form!r} of dtype {dtype!r}",
            f"Forms: {', '.join(get_args(ExportForm))}; dtypes: {', '.join(get_args(ExportDtype))}.",
        )
    description = _description(run)
    step, checkpoint = _find_checkpoint(run, step)
    if checkpoint is None and description.get("from_checkpoint"):
        checkpoint = Checkpoints(run / START).path(0)
    if form == "adapter" and checkpoint is None:
        raise ExportError(f"the run in {run} has no adapter yet", "Train at least one step, or export it merged.")
    kept = export_dtype(description["base_model"], dtype) if form == "merged" else None
    kind = form if kept is None else f"{form}-{str(kept).removeprefix('torch.')}"
    final = out or run / EXPORTS / f"{step:06d}-{kind}"
    mark = {"run": f"{description['project']}/{description['name']}", "step": step, "export": kind}
    mark |= {"weights": _fingerprint(checkpoint)}
    if final.exists() or final.is_symlink():
        if read_export_mark(final) == mark:
            return final
        raise occupied_error(final)
    with new_export(final) as directory:
        if kept is None and checkpoint is not None:
            _copy_adapter(checkpoint, directory)
        elif kept is not None:
            settings = PolicySettings.model_validate(description.get("policy") or {})
            gap = write_merged(description["base_model"], settings, checkpoint, directory, kept)
            card = model_card(
                description,
                read_description(experiment) if (experiment := run / "experiment.json").is_file() else {},
                read_rows(run / "metrics.jsonl"),
                step=step,
                base=source_of(description["base_model"]),
                merged=f"The weights are {kind.removeprefix('merged-')}. On a probe their log-probs differ from those "
                f"of base and adapter by at most {gap:.1g} nats.",
            )
            (directory / CARD).write_text(card, encoding="utf-8")
        (directory / EXPORT_MARK).write_text(json.dumps(mark) + "\n")
    return final


def _description(run: Path) -> dict[str, Any]:
    if not (run / "model.json").is_file():
        raise RunDirectoryError(f"there is no run in {run}", "Name one of `gavel runs`, or the directory of a run.")
    description = read_description(run / "model.json")
    check_format_version(description.get("format_version"), str(run / "model.json"))
    try:
        PolicySettings.model_validate(description.get("policy") or {})
        return {name: description[name] for name in ("name", "project", "base_model", "lora")} | description
    except (KeyError, ValidationError) as error:
        raise RunDirectoryError(f"{run / 'model.json'} is damaged: {error}", "Restore the file.") from error


def _find_checkpoint(run: Path, step: int | None) -> tuple[int, Path | None]:
    """A step and its whole checkpoint; step 0 has none."""
    checkpoints = Checkpoints(run / "checkpoints")
    kept, newest = checkpoints.steps(), checkpoints.latest() if step is None else None
    if step is None and newest is None and (kept or any(row["step"] for row in read_rows(run / "metrics.jsonl"))):
        raise RunDirectoryError(
            f"the run in {run} was trained, but none of its checkpoints is whole",
            "Restore one of them, or export the base as it was: RUN@0.",
        )
    if not (step := newest if step is None else step):
        return 0, None
    if not checkpoints.is_whole(step):
        state = "is damaged" if step in kept else "is not kept"
        raise RunDirectoryError(
            f"the checkpoint of step {step} {state}", f"Kept: {', '.join(map(str, kept)) or 'none'}."
        )
    return step, checkpoints.path(step)


def _fingerprint(checkpoint: Path | None) -> str:
    """The hash of the adapter's weights, as the checkpoint's manifest has it."""
    if checkpoint is None:
        return "base"
    hashes: dict[str, str] = json.loads((checkpoint / "manifest.json").read_text())
    return next((value for name, value in hashes.items() if name.startswith("adapter_model")), "")


def _copy_adapter(checkpoint: Path, directory: Path) -> None:
    for entry in checkpoint.iterdir():
        if entry.name not in _OF_THE_CHECKPOINT:
            shutil.copytree(entry, directory / entry.name) if entry.is_dir() else shutil.copy(entry, directory)
