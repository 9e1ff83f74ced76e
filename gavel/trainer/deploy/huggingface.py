"""Hugging Face: the adapter as a private repository of the Hub, served by an Inference Endpoint with vLLM.

    gavel deploy desk/clerk@12 huggingface:my-team --set instance_type=nvidia-l4

The endpoint serves one commit of the repository.
"""

import os
from asyncio import to_thread
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gavel.trainer.deploy.host import GOES_ON, Plan, Report, Resource, find_misfits, key_of, unless_gone
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord
from gavel.trainer.deploy.vllm import RANKS, server_rank
from gavel.trainer.runs.checkpoints import CARD

_KEY = "HF_TOKEN"
_PORT = 8000
_CHECK = f"Check {_KEY}: it must be of this user or organisation, and may write. {GOES_ON}"


class HuggingFaceHost:
    """A user or an organisation of the Hub."""

    name, key_variable = "huggingface", _KEY
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
        self.place = place.rstrip("/")
        if not self.place or "/" in self.place:
            raise DeployError(f"{place!r} is no user or organisation", "Give huggingface:NAME.")
        machine = {"vendor": vendor, "region": region, "instance_type": instance_type, "instance_size": instance_size}
        self._machine = machine
        self._idle_minutes = idle_minutes
        self._image = image
        self._gated = gated

    def check(self, adapter: AdapterFacts) -> list[str]:
        return find_misfits("Hugging Face", adapter, ranks=RANKS, takes=("rslora", "embeddings"), own_base="")

    @asynccontextmanager
    async def plan(self, record: DeploymentRecord, report: Report) -> AsyncGenerator[Plan]:
        from huggingface_hub import HfApi

        token = key_of(_KEY, "Make a token that may write, and set it in .env.")
        hub: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
        adapter, repository = record.adapter, f"{self.place}/{record.remote_name}"
        name = f"gavel-s{adapter.step}-{record.remote_name.rpartition('-')[2]}"  # of at most 32 characters

        async def find_repository() -> bool | None:
            return await to_thread(hub.repo_exists, repository) or None

        def make_endpoint() -> None:
            report(f"{name} runs on {self._find_machine(hub)}")
            files = [*(file.name for file in adapter.files()), CARD]
            commit = hub.upload_folder(  # the same files make no second commit
                repo_id=repository,
                folder_path=adapter.directory,
                allow_patterns=files,
                commit_message=f"Step {adapter.step}",
            )
            hub.create_inference_endpoint(
                name,
                namespace=self.place,
                repository=repository,
                revision=commit.oid,
                framework="pytorch",
                task="text-generation",
                custom_image={"url": self._image, "healthRoute": "/health", "port": _PORT},
                container_args=[
                    f"--model={adapter.base_model}",
                    f"--port={_PORT}",
                    "--enable-lora",
                    f"--max-lora-rank={server_rank(adapter)}",
                    f"--lora-modules={record.remote_name}=/repository",  # where the repository is there
                ],
                secrets={_KEY: token} if self._gated else None,
                type="authenticated",
                accelerator="gpu",
                min_replica=0,
                max_replica=1,
                scale_to_zero_timeout=self._idle_minutes,
                **self._machine,
            )

        def state(found: Any) -> str:
            """One that is scaled to zero wakes up at a request."""
            if found.status in ("failed", "updateFailed", "paused"):
                why = found.raw["status"].get("message") or "see its logs at endpoints.huggingface.co"
                raise DeployError(
                    f"the endpoint {name} is {found.status}: {why}",
                    f"Resume it in its console, or remove it: gavel undeploy {record.id}",
                )
            return "" if found.status in ("running", "scaledToZero") else str(found.status)

        endpoint = Resource(
            f"the endpoint {name}",
            find=lambda: unless_gone(partial(to_thread, hub.get_inference_endpoint, name, namespace=self.place)),
            make=lambda: to_thread(make_endpoint),
            remove=lambda: to_thread(hub.delete_inference_endpoint, name, namespace=self.place),
            state=state,
        )
        private = Resource(
            f"the repository {repository}",
            find_repository,
            make=lambda: to_thread(hub.create_repo, repository, private=True),
            remove=lambda: to_thread(hub.delete_repo, repository),
        )
        yield Plan([private, endpoint], lambda: (f"{endpoint.found.url}/v1", record.remote_name))

    def costs(self, record: DeploymentRecord) -> str:
        return (
            f"Hugging Face, {self._machine['instance_type']} {self._machine['instance_size']}: billed by the minute "
            f"while a replica runs, none after {self._idle_minutes} minutes without a request"
        )

    def _find_machine(self, hub: Any) -> str:
        """The machine and its price. Raises `DeployError` for one that is not there."""
        there: list[str] = []
        wanted = list(self._machine.values())
        for each in hub.list_inference_endpoints_hardware(namespace=self.place):
            machine = [each.vendor, each.region, each.instance_type, each.instance_size]
            if each.status == "available" and machine == wanted:
                return f"{each.id}, {each.price_per_hour} USD an hour while it runs"
            if each.status == "available" and (machine[:2] == wanted[:2] or machine[2:] == wanted[2:]):
                there.append(" ".join(machine))
        raise DeployError(
            f"{wanted[2]} {wanted[3]} is not available in {wanted[1]}",
            f"There are: {', '.join(there) or 'none'} (--set vendor=…, region=…, instance_type=…, instance_size=…).",
        )


open_host = HuggingFaceHost
