"""Deploys a step of a run: finds its checkpoint, and proves with the run's own base what is served."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gavel.trainer.backends.protocol import Backend
from gavel.trainer.deploy.adapter_facts import AdapterFacts, read_facts
from gavel.trainer.deploy.deploy import deploy
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.host import Report
from gavel.trainer.model_spec import TrainableSpec
from gavel.trainer.runs.checkpoints import Checkpoints, chosen_step
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.runs.run_directory import read_description

logger = logging.getLogger(__name__)

BEST_BY = "held_out/success"
Step = int | Literal["latest", "best"]


def facts_of_run(run: Path, step: Step, best_by: str = BEST_BY) -> AdapterFacts:
    """The checkpoint of a step of the run in a directory. Raises `DeployError` when it is not there, or not whole."""
    description = read_description(run / "model.json")
    checkpoints = Checkpoints(run / "checkpoints")
    saved = [each for each in checkpoints.steps() if checkpoints.is_whole(each)]
    metrics = whole_rows(run / "metrics.jsonl")
    if step == "best" and metrics.damage:
        logger.warning("%s", metrics.damage)
    chosen = chosen_step(saved, metrics.rows, step, best_by)
    if chosen is None or chosen not in saved:
        if step == "best" and saved:
            raise DeployError(
                f"no checkpoint of {run} has a value of {best_by}", "Name another with --best-by, or a step: RUN@12."
            )
        what = f"step {step}" if isinstance(step, int) else "any step"
        raise DeployError(
            f"{run} has no whole checkpoint of {what}", f"It has: {', '.join(map(str, saved)) or 'none'}."
        )
    return described_facts(checkpoints.path(chosen), description, chosen)


async def exported_facts(backend: Backend, model: TrainableSpec, step: Step, best_by: str = BEST_BY) -> AdapterFacts:
    """The checkpoint of a step of a backend's run, exported into `exports` of the run's directory on this machine.

    Raises `DeployError` where there is none.
    """
    rows = backend.history(model) if step == "best" else []
    saved = backend.checkpoints(model)
    chosen = chosen_step(saved, rows, step, best_by)
    if chosen is None and saved:
        raise DeployError(
            f"no checkpoint of {model.name} has a value of {best_by}",
            "Name another with best_by (--best-by), or a step.",
        )
    if chosen is None or chosen not in saved:
        what = f"step {step}" if isinstance(step, int) else "any step"
        raise DeployError(
            f"{model.name} has no checkpoint of {what}", f"It has: {', '.join(map(str, saved)) or 'none'}."
        )
    directory = await backend.export(model, "adapter", "auto", chosen, None)
    return await asyncio.to_thread(described_facts, directory, model.model_dump(), chosen)


def described_facts(directory: Path, description: Mapping[str, Any], step: int) -> AdapterFacts:
    """The adapter in a directory, of the run with this description."""
    names = {name: str(description[name]) for name in ("project", "name", "base_model")}
    return read_facts(directory, step=step, **names)


async def deploy_step(
    run: Path,
    adapter: AdapterFacts,
    description: Mapping[str, Any],
    address: str,
    *,
    wait: bool,
    smoke_test: bool,
    deadline: float,
    report: Report,
    options: Mapping[str, Any],
) -> Deployment:
    """Serves the adapter at the host of `address`, and asks it the smoke test. Raises `DeployError`."""
    proof = None
    if smoke_test:
        from gavel.trainer.deploy.smoke_test import SmokeTest

        proof = SmokeTest(run, adapter.step, adapter.directory, description)
    return await deploy(
        run, adapter, address, wait=wait, deadline=deadline, proof=proof, report=report, options=options
    )
