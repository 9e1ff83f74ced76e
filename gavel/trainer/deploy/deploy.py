"""Deploys a step of a run: its checkpoint, the host's check, the record, the host, the smoke test.

Nothing is sent to a host before its `check` is passed and the record can be written. The same call goes on after a
crash.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gavel.trainer.backends.protocol import Backend
from gavel.trainer.deploy.host import DeployHost, Deployment, Report, explain_errors, open_host
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord, open_record, read_facts
from gavel.trainer.model_spec import TrainableSpec
from gavel.trainer.runs.checkpoints import Checkpoints, chosen_step
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.runs.run_directory import read_description

logger = logging.getLogger(__name__)
BEST_BY = "held_out/success"
Step = int | Literal["latest", "best"]
_REMOVAL_SECONDS = 900.0


def facts_of_run(run: Path, step: Step, best_by: str = BEST_BY) -> AdapterFacts:
    """The checkpoint of a step of the run in a directory. Raises `DeployError` when it is not there, or not whole."""
    checkpoints = Checkpoints(run / "checkpoints")
    saved = [each for each in checkpoints.steps() if checkpoints.is_whole(each)]
    metrics = whole_rows(run / "metrics.jsonl")
    if step == "best" and metrics.damage:
        logger.warning("%s", metrics.damage)
    chosen = _chosen(str(run), saved, metrics.rows, step, best_by)
    return _described(checkpoints.path(chosen), read_description(run / "model.json"), chosen)


async def exported_facts(backend: Backend, model: TrainableSpec, step: Step, best_by: str = BEST_BY) -> AdapterFacts:
    """The checkpoint of a step of a backend's run, exported into `exports` of the run's directory on this machine.

    Raises `DeployError` where there is none.
    """
    rows = backend.history(model) if step == "best" else []
    chosen = _chosen(model.name, backend.checkpoints(model), rows, step, best_by)
    directory = await backend.export(model, "adapter", "auto", chosen, None)
    return await asyncio.to_thread(_described, directory, model.model_dump(), chosen)


def _chosen(run: str, saved: Sequence[int], rows: Sequence[Mapping[str, Any]], step: Step, best_by: str) -> int:
    chosen = chosen_step(saved, rows, step, best_by)
    if chosen is None and saved:
        raise DeployError(
            f"no checkpoint of {run} has a value of {best_by}", "Name another with --best-by, or a step: RUN@12."
        )
    if chosen is None or chosen not in saved:
        what = f"step {step}" if isinstance(step, int) else "any step"
        raise DeployError(
            f"{run} has no whole checkpoint of {what}", f"It has: {', '.join(map(str, saved)) or 'none'}."
        )
    return chosen


def _described(directory: Path, description: Mapping[str, Any], step: int) -> AdapterFacts:
    names = {name: str(description[name]) for name in ("project", "name", "base_model")}
    return read_facts(directory, step=step, **names)


async def deploy(
    run: Path,
    adapter: AdapterFacts,
    address: str,
    *,
    deadline: float = 3600.0,
    description: Mapping[str, Any] | None = None,
    report: Report = logger.info,
    options: Mapping[str, Any] | None = None,
) -> Deployment:
    """Serves `adapter` at the host of `address` and proves it; records are kept in `deployments` of `run`.

    `deadline`: seconds to wait until it serves. `description`: the run as in model.json, by which the smoke test asks;
    None: nothing is proven, which the record says. Raises `DeployError`; what was made by then stays in the record, for
    the same call or for `undeploy`.
    """
    host = open_host(address, **(options or {}))
    if misfits := host.check(adapter):
        raise DeployError(f"{host.name} does not take this adapter: {misfits[0]}", "\n       ".join(misfits[1:]))
    if adapter.license:
        report(f"licence of {adapter.base_model}: {adapter.license}; it holds for what is deployed too")
    canonical = f"{host.name}:{host.place}" if host.place else host.name  # another spelling is the same deployment
    record = open_record(run, host=host.name, address=canonical, adapter=adapter, options=options or {})
    with record.locked():
        record.state = "deploying"
        record.save()
        report(host.costs(record))
        try:
            with explain_errors(host):
                async with asyncio.timeout(deadline):
                    deployment = await host.deploy(adapter, record, report)
        except DeployError as error:
            if not record.made or record.id in error.remedy:
                raise
            ends = f"To give up and remove what was made: gavel undeploy {record.id}"
            raise DeployError(error.message, f"{error.remedy}\n       {ends}".lstrip()) from error
        except TimeoutError as error:
            raise DeployError(
                f"{host.name} does not serve {record.id} after {deadline:.0f} s",
                f"The same command goes on waiting; to give up and stop costs: gavel undeploy {record.id}",
            ) from error
        record.deployed = {
            "base_url": deployment.base_url,
            "model_id": deployment.model_id,
            "key_variable": deployment.key_variable,
        }
        record.state = "deployed"
        record.smoke_test = "not run: it is not proven which weights are served"
        if description is not None:
            record.smoke_test = await _prove(deployment, run, adapter, description, report)
        report(f"smoke test: {record.smoke_test}")
        record.save()
    return deployment


async def _prove(
    deployment: Deployment, run: Path, adapter: AdapterFacts, description: Mapping[str, Any], report: Report
) -> str:
    from gavel.trainer.deploy.smoke_test import smoke_test

    record = deployment.record
    record.save()
    try:
        return await smoke_test(deployment, run, adapter.step, adapter.directory, description, report)
    except DeployError as error:
        record.smoke_test = f"failed: {error.message}"
        record.save()
        raise DeployError(error.message, f"{error.remedy} To remove it: gavel undeploy {record.id}") from error


async def undeploy(record: DeploymentRecord, *, host: DeployHost | None = None, report: Report = logger.info) -> None:
    """Removes the deployment, also a half-made one; one that is removed already stays so. Raises `DeployError`."""
    if record.state == "undeployed":
        report(f"{record.id} is removed already")
        return
    host = host or open_host(record.address, **record.options)
    with record.locked():
        record.state = "undeploying"
        record.save()
        try:
            with explain_errors(host):
                async with asyncio.timeout(_REMOVAL_SECONDS):
                    await host.undeploy(record, report)
        except TimeoutError as error:
            raise DeployError(
                f"{host.name} has not removed {record.id} after {_REMOVAL_SECONDS:.0f} s",
                "Give the same command again; until it is removed it may cost.",
            ) from error
        record.state, record.deployed, record.made = "undeployed", {}, False
        record.save()
    report(f"{record.id} is removed; it costs nothing more")
