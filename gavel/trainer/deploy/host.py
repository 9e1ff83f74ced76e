"""What a host of deployments does, and the one that an address names.

    host = open_host("vllm:http://10.0.0.2:8000", path_map={"/home/me/runs": "/mnt/runs"})

A module of a host has `open_host(place, **options)`, where `place` is what follows the colon (empty without one). The
options are keyword arguments that JSON can hold; keys and tokens come from the environment, never through them. What
makes another deployment of the same adapter belongs to the place (fireworks:serverless), not to the options.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gavel.base import entry_points
from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.record import DeploymentRecord

HOSTS = {
    "vllm": "gavel.trainer.deploy.vllm",
    "together": "gavel.trainer.deploy.together",
    "fireworks": "gavel.trainer.deploy.fireworks",
    "wandb": "gavel.trainer.deploy.wandb",
    "huggingface": "gavel.trainer.deploy.huggingface",
    "ollama": "gavel.trainer.deploy.ollama",
}
Report = Callable[[str], None]
"""Hears one line about what is being done, for the user to read."""


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """What is to be deployed."""

    adapter: AdapterFacts
    wait: bool = True
    """Whether to wait until the host serves; if not, the same command later goes on."""


class DeployHost(Protocol):
    """A service or server. Every method raises `DeployError` with what to do next."""

    name: str
    place: str
    """What follows the colon of its address, in the one form that the host knows it by."""

    def check(self, adapter: AdapterFacts) -> list[str]:
        """Why the host does not take this adapter, each with what would fit; asks nothing of the host's network."""
        ...

    async def deploy(self, plan: DeployPlan, record: DeploymentRecord, report: Report) -> Deployment:
        """Uploads and serves the adapter, going on from the stages that `record` has; makes nothing twice."""
        ...

    async def status(self, record: DeploymentRecord) -> str:
        """What the host says of it now, in a few words."""
        ...

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        """Removes what was made; what is gone already is no error.

        Of a half-made deployment too: what a stage was begun for is looked up by its name.
        """
        ...

    def costs(self, record: DeploymentRecord) -> str:
        """What it costs while it stands, and how to stop that."""
        ...


def open_host(address: str, **options: Any) -> DeployHost:
    """The host of `name` or `name:place`. Raises `DeployError` for one that is not known, or an option it lacks."""
    name, _, place = address.partition(":")
    hosts = entry_points.names("gavel.hosts", HOSTS)
    if name not in hosts:
        raise DeployError(f"there is no host {name!r}", f"Hosts: {', '.join(hosts)}.")
    make = entry_points.load("gavel.hosts", name, HOSTS).open_host
    known = [each for each in inspect.signature(make).parameters if each != "place"]
    if unknown := sorted(options.keys() - set(known)):
        raise DeployError(f"{name} has no option {unknown[0]!r}", f"It has: {', '.join(known) or 'none'}.")
    return make(place, **options)
