"""Hugging Face: the adapter as a private repository of the Hub, served by an Inference Endpoint with vLLM.

    gavel deploy desk/clerk@12 huggingface:my-team --set instance_type=nvidia-l4

Repository and endpoint have names made of the record's, so a command that is given again finds what it has made. The
endpoint serves one commit of the repository.
"""

import os
from asyncio import to_thread
from collections.abc import Mapping
from functools import partial
from typing import Any

from gavel.trainer.deploy.host import (
    GOES_ON,
    Deployment,
    Report,
    ask,
    key_of,
    make_once,
    poll_until,
    remove,
    unless_gone,
)
from gavel.trainer.deploy.record import CONFIG, WEIGHTS, AdapterFacts, DeployError, DeploymentRecord
from gavel.trainer.deploy.vllm import own_server_misfits, server_arguments
from gavel.trainer.runs.checkpoints import CARD

KEY_VARIABLE = "HF_TOKEN"
_PORT = 8000
_CHECK = f"Check {KEY_VARIABLE}: it must be of this user or organisation, and may write. {GOES_ON}"


class HuggingFaceHost:
    """A user or an organisation of the Hub."""

    name = "huggingface"
    remedies: Mapping[int, str] = {401: _CHECK, 403: _CHECK}

    def __init__(
        self,
        place: str,
        *,
        vendor: str = "aws",
        region: str = "us-east-1",
        instance_type: str = "nvidia-l4",
        instance_size: str = "x1",
        idle_minutes: int = 15,
        image: str = "vllm/vllm-openai:latest",
        gated: bool = False,
    ) -> None:
        """`place`: the user or organisation. The endpoint has no replica after `idle_minutes` without a request.

        `gated`: the base model can be read with HF_TOKEN alone, which the endpoint is given as a secret.
        """
        self.place = self._namespace = place.rstrip("/")
        if not self.place or "/" in self.place:
            raise DeployError(f"{place!r} is no user or organisation", "Give huggingface:NAME.")
        machine = {"vendor": vendor, "region": region, "instance_type": instance_type, "instance_size": instance_size}
        self._machine = machine
        self._idle_minutes = idle_minutes
        self._image = image
        self._gated = gated

    def check(self, adapter: AdapterFacts) -> list[str]:
        return own_server_misfits(adapter)

    async def deploy(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Deployment:
        hub = self._hub()
        commit = await self._publish(hub, adapter, record, report)
        what = f"the endpoint {_endpoint_name(record)} cannot be made"
        make = partial(self._make, hub, adapter, record, commit, report)
        await make_once(record, what, partial(self._endpoint, hub, record), make)
        url = await poll_until(lambda: self._state(hub, record), "the endpoint", report)
        return Deployment(self, record, f"{url}/v1", record.remote_name, KEY_VARIABLE)

    async def status(self, record: DeploymentRecord) -> str:
        found = await self._endpoint(self._hub(), record)
        return "gone" if found is None else str(found.status)

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        hub, name, repository = self._hub(), _endpoint_name(record), self._repository(record)
        end = partial(to_thread, hub.delete_inference_endpoint, name, namespace=self._namespace)
        await remove(f"the endpoint {name}", end, report)
        await remove(f"the repository {repository}", partial(to_thread, hub.delete_repo, repository), report)

    def costs(self, record: DeploymentRecord) -> str:
        return (
            f"Hugging Face, {self._machine['instance_type']} {self._machine['instance_size']}: billed by the minute "
            f"while a replica runs, none after {self._idle_minutes} minutes without a request; to remove it: "
            f"gavel undeploy {record.id}"
        )

    def _hub(self) -> Any:
        from huggingface_hub import HfApi

        token = key_of(KEY_VARIABLE, "Make a token that may write, and set it in .env.")
        return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)

    def _repository(self, record: DeploymentRecord) -> str:
        return f"{self._namespace}/{record.remote_name}"

    async def _publish(self, hub: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> str:
        """The commit that holds the adapter. Idempotent: the same files make no second commit."""
        repository = self._repository(record)
        record.begin()
        report(f"uploading {adapter.size / 1e6:.1f} MB to {repository}")

        def publish() -> str:
            hub.create_repo(repository, private=True, exist_ok=True)
            files = [CONFIG, WEIGHTS, CARD]
            message = f"Step {adapter.step}"
            return hub.upload_folder(
                repo_id=repository, folder_path=adapter.directory, allow_patterns=files, commit_message=message
            ).oid

        return await ask(f"{repository} cannot be written", lambda: to_thread(publish))

    async def _make(
        self, hub: Any, adapter: AdapterFacts, record: DeploymentRecord, commit: str, report: Report
    ) -> Any:
        name = _endpoint_name(record)
        report(f"making the endpoint {name} on {await self._look_up_price(hub)}")
        serving = server_arguments(adapter, record.remote_name, "/repository", _PORT)  # where the repository is there
        return await to_thread(
            hub.create_inference_endpoint,
            name,
            namespace=self._namespace,
            repository=self._repository(record),
            revision=commit,
            framework="pytorch",
            task="text-generation",
            custom_image={"url": self._image, "healthRoute": "/health", "port": _PORT},
            container_args=[f"--model={adapter.base_model}", *serving],
            secrets={KEY_VARIABLE: key_of(KEY_VARIABLE)} if self._gated else None,
            type="authenticated",
            accelerator="gpu",
            min_replica=0,
            max_replica=1,
            scale_to_zero_timeout=self._idle_minutes,
            **self._machine,
        )

    async def _look_up_price(self, hub: Any) -> str:
        """The machine and its price. Raises `DeployError` for one that is not there."""
        there: list[str] = []
        wanted = list(self._machine.values())
        for each in await to_thread(hub.list_inference_endpoints_hardware, namespace=self._namespace):
            machine = [each.vendor, each.region, each.instance_type, each.instance_size]
            if each.status == "available" and machine == wanted:
                return f"{each.id}, {each.price_per_hour} USD an hour while it runs"
            if each.status == "available" and (machine[:2] == wanted[:2] or machine[2:] == wanted[2:]):
                there.append(" ".join(machine))
        raise DeployError(
            f"{wanted[2]} {wanted[3]} is not available in {wanted[1]}",
            f"There are: {', '.join(there) or 'none'} (--set vendor=…, region=…, instance_type=…, instance_size=…).",
        )

    async def _endpoint(self, hub: Any, record: DeploymentRecord) -> Any:
        look = partial(to_thread, hub.get_inference_endpoint, _endpoint_name(record), namespace=self._namespace)
        return await ask("the endpoint cannot be looked up", partial(unless_gone, look))

    async def _state(self, hub: Any, record: DeploymentRecord) -> tuple[str | None, str]:
        """The address once it serves; one that is scaled to zero wakes up at a request."""
        name, found = _endpoint_name(record), await self._endpoint(hub, record)
        if found is None:
            raise DeployError(f"the endpoint {name} is gone", "The same command makes it again.")
        if found.status in ("failed", "updateFailed"):
            why = found.raw["status"].get("message") or "see its logs at endpoints.huggingface.co"
            raise DeployError(f"the endpoint {name} failed: {why}", f"Remove it: gavel undeploy {record.id}")
        if found.status == "paused":
            raise DeployError(f"the endpoint {name} is paused", "Resume it in its console, or undeploy it.")
        return (found.url if found.status in ("running", "scaledToZero") else None), str(found.status)


open_host = HuggingFaceHost


def _endpoint_name(record: DeploymentRecord) -> str:
    """The endpoint's name, at most 32 characters, as the host requires."""
    return f"gavel-s{record.step}-{record.remote_name.rpartition('-')[2]}"
