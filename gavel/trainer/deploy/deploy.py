"""Deploys a checkpoint: facts, check, record, host, smoke test. The same call goes on after a crash.

Nothing is sent to a host before its `check` is passed and the record can be written.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.host import DeployHost, DeployPlan, Report, open_host
from gavel.trainer.deploy.record import DeploymentRecord, open_record
from gavel.trainer.deploy.retry import no_pages

logger = logging.getLogger(__name__)


class Proof(Protocol):
    """A smoke test: raises `DeployError` for a deployment that serves something else; gives what it found."""

    async def __call__(self, deployment: Deployment, report: Report) -> str: ...


async def deploy(
    run: Path,
    adapter: AdapterFacts,
    address: str,
    *,
    wait: bool = True,
    deadline: float = 3600.0,
    proof: Proof | None = None,
    report: Report = logger.info,
    options: Mapping[str, Any] | None = None,
) -> Deployment:
    """Serves `adapter` at the host of `address` and proves it; records are kept in `deployments` of `run`.

    `deadline`: seconds to wait until it serves. `proof` None: it is not proven, which the record says. Raises
    `DeployError`; what was made by then stays in the record, for the same call or for `undeploy`.
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
            with no_pages(host.name):
                async with asyncio.timeout(deadline):
                    deployment = await host.deploy(DeployPlan(adapter, wait), record, report)
        except DeployError as error:
            if not record.stages or record.id in error.remedy:
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
        record.state = "deployed" if wait else "deploying"
        record.save()
        if wait:
            await _prove(deployment, proof, report)
    return deployment


async def _prove(deployment: Deployment, proof: Proof | None, report: Report) -> None:
    record = deployment.record
    if not deployment.base_url:
        record.smoke_test = "not run: it is published, and not served"
    elif proof is None:
        record.smoke_test = "not run: it is not proven which weights are served"
    else:
        try:
            record.smoke_test = await proof(deployment, report)
        except DeployError as error:
            record.smoke_test = f"failed: {error.message}"
            record.save()
            raise DeployError(error.message, f"{error.remedy} To remove it: gavel undeploy {record.id}") from error
    record.save()
    report(f"smoke test: {record.smoke_test}")


async def undeploy(record: DeploymentRecord, *, host: DeployHost | None = None, report: Report = logger.info) -> None:
    """Removes the deployment, also a half-made one; one that is removed already stays so. Raises `DeployError`."""
    if record.state == "undeployed":
        report(f"{record.id} is removed already")
        return
    host = host or open_host(record.address, **record.options)
    with record.locked():
        record.state = "undeploying"
        record.save()
        with no_pages(host.name):
            await host.undeploy(record, report)
        record.state, record.deployed = "undeployed", {}
        record.save()
    report(f"{record.id} is removed; it costs nothing more")


def reopened(record: DeploymentRecord) -> Deployment:
    """The deployment of a record whose host serves. Raises `DeployError` for one that is not deployed."""
    if record.state != "deployed":
        raise DeployError(f"{record.id} is {record.state}", "Deploy it (again) first: gavel deploy.")
    host = open_host(record.address, **record.options)
    return Deployment(host=host, record=record, stop_hint=host.costs(record), **record.deployed)
