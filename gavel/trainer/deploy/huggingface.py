"""Hugging Face: the adapter as a private repository of the Hub, served by an Inference Endpoint with vLLM.

    gavel deploy desk/clerk@12 huggingface:my-team --set instance_type=nvidia-l4
    gavel deploy desk/clerk@12 huggingface:my-team --set endpoint=false          the repository alone

Repository and endpoint have names made of the record's, so a command that is given again finds what it has made. The
endpoint serves one commit of the repository.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeVar

from gavel.base.network import HTTP_ERRORS
from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.credentials import key_of
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.host import DeployPlan, Report
from gavel.trainer.deploy.record import DeploymentRecord, Ids
from gavel.trainer.deploy.retry import GOES_ON, refused, repeated, status_of
from gavel.trainer.deploy.waiting import until
from gavel.trainer.runs.checkpoints import CARD

T = TypeVar("T")
KEY_VARIABLE = "HF_TOKEN"
_LARGEST_RANK = 512
_PORT = 8000


def open_host(
    place: str,
    *,
    endpoint: bool = True,
    vendor: str = "aws",
    region: str = "us-east-1",
    instance_type: str = "nvidia-l4",
    instance_size: str = "x1",
    idle_minutes: int = 15,
    image: str = "vllm/vllm-openai:latest",
    gated: bool = False,
) -> "HuggingFaceHost":
    """`place`: the user or organisation. The endpoint has no replica after `idle_minutes` without a request.

    `endpoint` false: the adapter is put on the Hub, and nothing serves it. `gated`: the base model can be read with
    HF_TOKEN alone, which the endpoint is given as a secret.
    """
    place = place.rstrip("/")
    if not place or "/" in place:
        raise DeployError(f"{place!r} is no user or organisation", "Give huggingface:NAME.")
    machine = {
        "vendor": vendor, "region": region, "instance_type": instance_type, "instance_size": instance_size,
        "accelerator": "gpu", "min_replica": 0, "max_replica": 1, "scale_to_zero_timeout": idle_minutes,
    }  # fmt: skip
    return HuggingFaceHost(place, machine if endpoint else None, image, gated)


class HuggingFaceHost:
    """A user or an organisation of the Hub."""

    name = "huggingface"

    def __init__(self, namespace: str, machine: dict[str, Any] | None, image: str, gated: bool) -> None:
        self.place = self._namespace = namespace
        self._machine = machine
        self._image = image
        self._gated = gated

    def check(self, adapter: AdapterFacts) -> list[str]:
        if self._machine is None:
            return []
        misfits: list[str] = []
        if adapter.rank > _LARGEST_RANK:
            misfits.append(f"its rank is {adapter.rank}; vLLM takes ranks up to {_LARGEST_RANK} (--lora-rank)")
        for special in ("dora", "modules_to_save"):
            if special in adapter.special:
                misfits.append(f"it has {special}, which vLLM does not serve")
        if "experts" in adapter.special:
            misfits.append("it adapts experts, which the endpoint's vLLM is not started for: vllm:URL, or gavel export")
        if adapter.base_is_local:
            misfits.append(
                f"its base {adapter.base_model} is not on the Hub, from where the endpoint loads it; "
                "--set endpoint=false puts the adapter alone there"
            )
        return misfits

    async def deploy(self, plan: DeployPlan, record: DeploymentRecord, report: Report) -> Deployment:
        hub = self._hub()
        commit = await self._publish(hub, plan.adapter, record, report)
        if self._machine is None:
            return Deployment(self, record, "", self._repository(record), None, self.costs(record))
        await self._endpoint(hub, plan.adapter, record, commit, report)
        url, state = await self._state(hub, record)
        if plan.wait and url is None:
            url = await until(lambda: self._state(hub, record), "the endpoint", report)
        elif url is None:
            report(f"the endpoint is {state}: the same command without --no-wait waits for it")
        address = f"{url}/v1" if url else ""
        return Deployment(self, record, address, record.remote_name, KEY_VARIABLE, self.costs(record))

    async def status(self, record: DeploymentRecord) -> str:
        if self._machine is None:
            return "published" if record.done("files") else "not published"
        found = await self._find(self._hub(), record)
        return "gone" if found is None else str(found.status)

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        hub, name = self._hub(), _endpoint_name(record)
        if self._machine is not None or "endpoint" in record.stages:  # by its name, whatever the record has
            await self._delete(
                lambda: hub.delete_inference_endpoint(name, namespace=self._namespace), f"the endpoint {name}", report
            )
            record.forget("endpoint")
        repository = self._repository(record)
        await self._delete(lambda: hub.delete_repo(repository), f"the repository {repository}", report)
        record.forget("files")

    def costs(self, record: DeploymentRecord) -> str:
        stop = f"to remove it: gavel undeploy {record.id}"
        if self._machine is None:
            return f"Hugging Face: a private repository, within the storage of {self._namespace}; {stop}"
        machine = f"{self._machine['instance_type']} {self._machine['instance_size']}"
        return (
            f"Hugging Face, {machine}: billed by the minute while a replica runs, none after "
            f"{self._machine['scale_to_zero_timeout']} minutes without a request; {stop}"
        )

    def _hub(self) -> Any:
        from huggingface_hub import HfApi

        key_of(KEY_VARIABLE, "Make a token that may write, and set it in .env.")
        return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)

    def _repository(self, record: DeploymentRecord) -> str:
        return f"{self._namespace}/{record.remote_name}"

    async def _publish(self, hub: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> str:
        """The commit that holds the adapter. Idempotent: the same files make no second commit."""
        from huggingface_hub import CommitOperationAdd

        known = record.done("files")
        if known is not None:
            return str(known["commit"])
        repository = self._repository(record)
        record.begin("files", repository=repository)
        report(f"uploading {adapter.size / 1e6:.1f} MB to {repository}")
        card = adapter.directory / CARD
        files = [*adapter.files(), *([card] if card.is_file() else [])]

        def publish() -> str:
            hub.create_repo(repository, private=True, exist_ok=True)
            operations = [CommitOperationAdd(file.name, str(file)) for file in files]
            return str(hub.create_commit(repository, operations, commit_message=f"Step {adapter.step}").oid)

        commit = await self._ask(publish, f"{repository} cannot be written")
        record.finish("files", repository=repository, commit=commit)
        return commit

    async def _endpoint(
        self, hub: Any, adapter: AdapterFacts, record: DeploymentRecord, commit: str, report: Report
    ) -> None:
        assert self._machine is not None
        name, machine = _endpoint_name(record), self._machine

        async def find() -> Ids | None:
            found = await self._find(hub, record)
            return None if found is None else {"name": found.name}

        async def make() -> Ids:
            report(f"making the endpoint {name} on {await self._price(hub, machine)}")

            def ask() -> Ids:
                made = hub.create_inference_endpoint(
                    name,
                    namespace=self._namespace,
                    repository=self._repository(record),
                    revision=commit,
                    framework="pytorch",
                    task="text-generation",
                    custom_image={"url": self._image, "healthRoute": "/health", "port": _PORT},
                    container_args=_arguments(adapter, record),
                    secrets={KEY_VARIABLE: key_of(KEY_VARIABLE)} if self._gated else None,
                    type="authenticated",
                    **machine,
                )
                return {"name": made.name}

            return await repeated(lambda: asyncio.to_thread(ask), creates=True, find=find)

        try:
            await record.once("endpoint", find=find, make=make)
        except (*HTTP_ERRORS, OSError) as error:
            raise refused(f"the endpoint {name} cannot be made", error, _REMEDIES) from error

    async def _price(self, hub: Any, machine: dict[str, Any]) -> str:
        """The machine and its price. Raises `DeployError` for one that is not there."""
        known = await self._ask(
            lambda: hub.list_inference_endpoints_hardware(namespace=self._namespace), "the hardware is not told"
        )
        fields = "vendor", "region", "instance_type", "instance_size"
        fits = [each for each in known if all(getattr(each, field) == machine[field] for field in fields)]
        if not fits or fits[0].status != "available":
            raise DeployError(
                f"{machine['instance_type']} {machine['instance_size']} is not available in {machine['region']}",
                _others([each for each in known if each.status == "available"], machine),
            )
        return f"{fits[0].id}, {fits[0].price_per_hour} USD an hour while it runs"

    async def _find(self, hub: Any, record: DeploymentRecord) -> Any:
        def ask() -> Any:
            try:
                return hub.get_inference_endpoint(_endpoint_name(record), namespace=self._namespace)
            except Exception as error:
                if status_of(error) == 404:
                    return None
                raise

        return await self._ask(ask, "the endpoint cannot be looked up")

    async def _state(self, hub: Any, record: DeploymentRecord) -> tuple[str | None, str]:
        """The address once it serves; one that is scaled to zero wakes up at a request."""
        name, found = _endpoint_name(record), await self._find(hub, record)
        if found is None:
            record.forget("endpoint")
            raise DeployError(f"the endpoint {name} is gone", "The same command makes it again.")
        if found.status in ("failed", "updateFailed"):
            why = found.raw["status"].get("message") or "see its logs at endpoints.huggingface.co"
            raise DeployError(f"the endpoint {name} failed: {why}", f"Remove it: gavel undeploy {record.id}")
        if found.status == "paused":
            raise DeployError(
                f"the endpoint {name} is paused", "Resume it at endpoints.huggingface.co, or undeploy it."
            )
        return (found.url if found.status in ("running", "scaledToZero") else None), str(found.status)

    async def _delete(self, ask: Callable[[], Any], what: str, report: Report) -> None:
        def once() -> bool:
            try:
                ask()
            except Exception as error:
                if status_of(error) == 404:
                    return False
                raise
            return True

        if await self._ask(once, f"{what} cannot be removed"):
            report(f"removed {what}")

    async def _ask(self, ask: Callable[[], T], what: str) -> T:
        try:
            return await repeated(lambda: asyncio.to_thread(ask))
        except (*HTTP_ERRORS, OSError) as error:
            raise refused(what, error, _REMEDIES) from error


_REMEDIES = {
    401: f"Check {KEY_VARIABLE}: it must be of this user or organisation, and may write. {GOES_ON}",
    403: f"Check {KEY_VARIABLE}: it must be of this user or organisation, and may write. {GOES_ON}",
    429: f"Wait a minute. {GOES_ON}",
}


def _endpoint_name(record: DeploymentRecord) -> str:
    """At most 32 characters, as the host wants it."""
    return f"gavel-s{record.step}-{record.remote_name.rpartition('-')[2]}"


def _others(available: list[Any], machine: dict[str, Any]) -> str:
    """The regions of this machine, or the machines of this region, or all machines."""
    alike = [each for each in available if each.instance_type == machine["instance_type"]]
    regions = [f"{each.vendor} {each.region}" for each in alike if each.instance_size == machine["instance_size"]]
    if regions:
        return f"It is in: {', '.join(dict.fromkeys(regions))} (--set vendor=…, region=…)."
    here = [each for each in available if (each.vendor, each.region) == (machine["vendor"], machine["region"])]
    names = [f"{each.instance_type} {each.instance_size}" for each in here or available]
    return f"There are: {', '.join(dict.fromkeys(names)) or 'none'} (--set instance_type=…, instance_size=…)."


def _arguments(adapter: AdapterFacts, record: DeploymentRecord) -> list[str]:
    """Of vLLM; the repository is the directory /repository there."""
    rank = next(rank for rank in (8, 16, 32, 64, 128, 256, _LARGEST_RANK) if rank >= adapter.rank)
    return [
        *("--model", adapter.base_model, "--port", str(_PORT), "--enable-lora", "--max-lora-rank", str(rank)),
        *("--lora-modules", f"{record.remote_name}=/repository"),
    ]
