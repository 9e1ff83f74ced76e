"""Deploys a step of a run: its checkpoint, the host's check, the record, the host's resources, the smoke test.

Nothing is sent to a host before its `check` is passed and the record can be written. The same call goes on after a
crash.
"""

import asyncio
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gavel.trainer.backends.protocol import Backend
from gavel.trainer.deploy.host import DeployHost, Deployment, Report, Resource, ask, open_host, status_of, tell_costs
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord, open_record, read_facts
from gavel.trainer.model_spec import TrainableSpec
from gavel.trainer.runs.checkpoints import Checkpoints, chosen_step
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.runs.run_directory import read_description

logger = logging.getLogger(__name__)
BEST_BY = "held_out/success"
PAUSE = 5.0
"""Seconds between two looks at what a host does in its own time."""
Step = int | Literal["latest", "best"]
_REMOVAL_SECONDS = 900.0
_ABSENT = "not there"


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
    record = open_record(run, address=canonical, adapter=adapter, options=options or {})
    with record.locked():
        record.save(state="deploying")
        report(tell_costs(host, record))
        try:
            async with asyncio.timeout(deadline), host.plan(record, report) as plan:
                for resource in plan.resources:
                    await _make(host, resource, report)
                deployment = Deployment(host, record, *plan.served())
        except DeployError as error:
            if record.id in error.remedy:
                raise
            ends = f"To give up, and remove what was made: gavel undeploy {record.id}"
            raise DeployError(error.message, f"{error.remedy}\n       {ends}".lstrip()) from error
        except TimeoutError as error:
            raise DeployError(
                f"{host.name} does not serve {record.id} after {deadline:.0f} s",
                f"The same command goes on waiting; to give up and stop costs: gavel undeploy {record.id}",
            ) from error
        served = {"base_url": deployment.base_url, "model_id": deployment.model_id, "key_variable": host.key_variable}
        proof = "not run: it is not proven which weights are served"
        record.save(state="deployed", deployed=served, smoke_test=proof)
        if description is not None:
            from gavel.trainer.deploy.smoke_test import smoke_test

            try:
                proof = await smoke_test(deployment, description, report)
            except DeployError as error:
                record.save(smoke_test=f"failed: {error.message}")
                raise DeployError(error.message, f"{error.remedy} To remove it: gavel undeploy {record.id}") from error
            record.save(smoke_test=proof)
        report(f"smoke test: {proof}")
    return deployment


async def undeploy(record: DeploymentRecord, *, report: Report = logger.info) -> None:
    """Removes the deployment, also a half-made one; one that is removed already stays so. Raises `DeployError`."""
    if record.state == "undeployed":
        report(f"{record.id} is removed already")
        return
    host = open_host(record.address, **record.options)
    with record.locked():
        record.save(state="undeploying")
        try:
            async with asyncio.timeout(_REMOVAL_SECONDS), host.plan(record, report) as plan:
                for resource in plan.resources:  # of which some lie in those before them
                    await _find(host, resource)
                for resource in reversed(plan.resources):
                    await _remove(host, resource, report)
        except TimeoutError as error:
            raise DeployError(
                f"{host.name} has not removed {record.id} after {_REMOVAL_SECONDS:.0f} s",
                "Give the same command again; until it is removed it may cost.",
            ) from error
        shutil.rmtree(record.directory, ignore_errors=True)
        record.save(state="undeployed", deployed={})
    report(f"{record.id} is removed; it costs nothing more")


async def look_up(host: DeployHost, record: DeploymentRecord) -> str:
    """The deployment's state at its host, in a few words. Raises `DeployError`."""
    async with host.plan(record, logger.info) as plan:
        for resource in plan.resources:
            if state := await _look(host, resource):
                return f"{resource.what} is {state}"
    return "serving"


async def _make(host: DeployHost, resource: Resource, report: Report) -> None:
    """Finds the resource, or creates it, and waits until it is ready."""

    async def find_or_make() -> None:
        if await resource.find() is None:
            report(f"making {resource.what}")
            await resource.make()

    await ask(host, f"{resource.what} cannot be made", find_or_make, resource.remedies)
    told = ""
    while state := await _look(host, resource):
        if state == _ABSENT and told not in ("", _ABSENT):
            raise DeployError(f"{resource.what} is gone, or has stopped", "The same command makes or starts it again.")
        if state != told:
            report(f"waiting for {resource.what}: {state}")
            told = state
        await asyncio.sleep(PAUSE)


async def _look(host: DeployHost, resource: Resource) -> str:
    """Finds the resource; its state, "" when it is ready."""

    async def look() -> str:
        resource.found = await resource.find()
        return _ABSENT if resource.found is None else resource.state(resource.found)

    return await ask(host, f"{resource.what} cannot be looked up", look, resource.remedies)


async def _find(host: DeployHost, resource: Resource) -> bool:
    """Whether the resource is there, ready or failed."""
    resource.found = await ask(host, f"{resource.what} cannot be looked up", resource.find, resource.remedies)
    return resource.found is not None


async def _remove(host: DeployHost, resource: Resource, report: Report) -> None:
    """Removes what was found, and waits until it is gone; what is being stopped may refuse it for a while."""
    remove = resource.remove
    if remove is None or resource.found is None:
        return

    async def request() -> bool:
        try:
            await remove()
        except Exception as error:
            if status_of(error) not in (404, 409, 412):
                raise
            return status_of(error) == 404
        return True

    report(f"removing {resource.what}")
    is_removed = False
    while True:
        is_removed = is_removed or await ask(host, f"{resource.what} cannot be removed", request)
        if is_removed and not await _find(host, resource):
            return
        await asyncio.sleep(PAUSE)
