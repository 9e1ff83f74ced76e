"""A vLLM server that runs anywhere: the adapter is loaded into it while it serves, under a name of its own.

    gavel deploy desk/clerk@12 vllm:http://10.0.0.2:8000 --set path_map=/home/me/runs=/mnt/runs

The server reads the adapter from a directory, so the run directory must be visible there: under the same path, or under
the one that `path_map` gives. What the server lists decides, not the record: one that was restarted has forgotten its
adapters, and the same command loads it again.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import httpx

from gavel.base.files import replacing
from gavel.base.network import is_on_this_machine
from gavel.trainer.deploy.adapter_facts import CONFIG, WEIGHTS, AdapterFacts
from gavel.trainer.deploy.credentials import key_of, server_address
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.host import DeployPlan, Report
from gavel.trainer.deploy.record import DeploymentRecord
from gavel.trainer.deploy.retry import HostRefusal, json_request, refused, repeated

KEY_VARIABLE = "VLLM_API_KEY"
LARGEST_RANK = 512
_LOAD_SECONDS = 300.0
_EXPERTS = "experts"
_START = "vllm serve BASE --enable-lora --max-lora-rank {rank}, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"


def open_host(place: str, *, path_map: str = "", base: str = "") -> "VllmHost":
    """`place`: the server's address. `path_map`: HERE=THERE, as the server sees a directory of this machine.

    `base`: the base model as the server names it, where that is not the run's name for it. Raises `DeployError`.
    """
    url = server_address(place, "vllm:http://HOST:PORT", KEY_VARIABLE).removesuffix("/v1")
    here, sign, there = path_map.partition("=")
    if path_map and not (here and sign and there):
        raise DeployError(f"path_map={path_map!r} does not map a path", "Give HERE=THERE, such as /runs=/mnt/runs.")
    return VllmHost(url, (here.rstrip("/"), there.rstrip("/")), base)


class VllmHost:
    """A running server with runtime updates of adapters."""

    name = "vllm"

    def __init__(self, url: str, path_map: tuple[str, str], base: str) -> None:
        self.place = self._url = url
        self._path_map = path_map
        self._base = base

    def check(self, adapter: AdapterFacts) -> list[str]:
        misfits: list[str] = []
        if adapter.rank > LARGEST_RANK:
            misfits.append(f"its rank is {adapter.rank}; vLLM takes ranks up to {LARGEST_RANK} (--lora-rank)")
        for special in ("dora", "modules_to_save"):
            if special in adapter.special:
                misfits.append(f"it has {special}, which vLLM does not serve; merged it would fit: gavel export")
        return misfits

    async def deploy(self, plan: DeployPlan, record: DeploymentRecord, report: Report) -> Deployment:
        adapter, name = plan.adapter, record.remote_name
        async with self._client() as client:
            served = await self._served(client)
            self._check_base(adapter, served)
            if name in {each["id"] for each in served}:
                report(f"{self._url} serves {name} already")
            else:
                directory = _kept_copy(adapter, record)
                record.begin("adapter", name=name)
                await self._load(client, name, directory, adapter)
                report(f"{self._url} has loaded {name} from {self._seen(directory)}")
            record.finish("adapter", name=name)
        key = KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else None
        return Deployment(self, record, f"{self._url}/v1", name, key, self.costs(record))

    async def status(self, record: DeploymentRecord) -> str:
        async with self._client() as client:
            served = await self._served(client)
        return "serving" if record.remote_name in {each["id"] for each in served} else "not loaded there"

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        async with self._client() as client:
            if record.remote_name in {each["id"] for each in await self._served(client)}:
                try:
                    await repeated(
                        lambda: _text_request(client, "/v1/unload_lora_adapter", {"lora_name": record.remote_name})
                    )
                except HostRefusal as error:
                    if error.status != 404:
                        raise refused(f"{self._url} does not unload {record.remote_name}", error) from error
                report(f"{self._url} has unloaded {record.remote_name}")
        record.forget("adapter")
        shutil.rmtree(_copy_of(record), ignore_errors=True)

    def costs(self, record: DeploymentRecord) -> str:
        return (
            f"vLLM at {self._url}: the server costs what its machine costs, with or without this adapter. "
            f"gavel undeploy {record.id} unloads the adapter; the server is yours to stop"
        )

    def _client(self) -> httpx.AsyncClient:
        key = key_of(KEY_VARIABLE) if os.environ.get(KEY_VARIABLE) else ""
        return httpx.AsyncClient(
            base_url=self._url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=_LOAD_SECONDS,
            trust_env=not is_on_this_machine(self._url),
        )

    async def _served(self, client: httpx.AsyncClient) -> list[dict[str, Any]]:
        try:
            return (await repeated(lambda: json_request(client, "GET", "/v1/models")))["data"]
        except (HostRefusal, KeyError, TypeError) as error:
            raise refused(
                f"{self._url} does not list its models as vLLM does",
                error,
                {401: f"Set {KEY_VARIABLE} to the key that the server was started with."},
            ) from error

    def _check_base(self, adapter: AdapterFacts, served: list[dict[str, Any]]) -> None:
        bases = [each for each in served if each.get("parent") is None]
        wanted = {self._base or adapter.base_model}
        if not self._base and adapter.base_is_local:
            from gavel.trainer.policy.policy import source_of

            wanted.add(source_of(adapter.base_model))
        if not any({each["id"], each.get("root")} & wanted for each in bases):
            there = ", ".join(str(each["id"]) for each in bases) or "no base model"
            raise DeployError(
                f"{self._url} serves {there}, not {self._base or adapter.base_model}, which this adapter is for",
                "Start a server with that base; if it is the same model by another name: --set base=NAME.",
            )

    async def _load(self, client: httpx.AsyncClient, name: str, directory: Path, adapter: AdapterFacts) -> None:
        body: dict[str, Any] = {"lora_name": name, "lora_path": self._seen(directory)}
        if _EXPERTS in adapter.special:
            body["is_3d_lora_weight"] = True  # as PEFT stacks them

        async def loaded() -> str | None:
            return name if name in {each["id"] for each in await self._served(client)} else None

        try:
            await repeated(
                lambda: _text_request(client, "/v1/load_lora_adapter", body), creates=True, find=loaded, patience=30.0
            )
        except HostRefusal as error:
            raise self._unloaded(error, directory, adapter) from error

    def _unloaded(self, error: HostRefusal, directory: Path, adapter: AdapterFacts) -> DeployError:
        start = f"Start it as {_START.format(rank=adapter.rank)}."
        if _EXPERTS in adapter.special:
            start = start.replace("--enable-lora", "--enable-lora --enable-mixed-moe-lora-format")
        told = error.text.lower()
        if error.status in (404, 405) and "adapter" not in told:
            return refused(f"{self._url} takes no adapters while it runs", error, {404: start, 405: start})
        if "moe" in told:
            return refused(f"{self._url} does not take adapters of experts", error, {error.status: start})
        if "rank" in told:
            return refused(f"{self._url} does not take rank {adapter.rank}", error, {error.status: start})
        seen = (
            f"The server must see {directory} as {self._seen(directory)}: mount it there, or give the path that it has "
            "with --set path_map=HERE=THERE."
        )
        return refused(f"{self._url} does not load the adapter", error, {400: seen, 404: seen, 500: seen})

    def _seen(self, directory: Path) -> str:
        """The path of a directory as the server has it."""
        here, there = self._path_map
        path = str(directory.absolute())
        if not here:
            return path
        root = str(Path(here).absolute())
        if path != root and not path.startswith(f"{root}/"):
            raise DeployError(f"{path} does not lie in {root}, which path_map maps", "Map the directory of the runs.")
        return there + path.removeprefix(root)


def _copy_of(record: DeploymentRecord) -> Path:
    return record.path.with_suffix("")


def _kept_copy(adapter: AdapterFacts, record: DeploymentRecord) -> Path:
    """The adapter's two files beside the record: vLLM reads them again at times, and a checkpoint may be deleted."""
    directory = _copy_of(record)
    directory.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, WEIGHTS):
        with replacing(directory / name) as unfinished:
            shutil.copyfile(adapter.directory / name, unfinished)
    return directory


async def _text_request(client: httpx.AsyncClient, path: str, body: dict[str, str]) -> str:
    """vLLM answers these with a sentence, not with JSON."""
    try:
        response = await client.post(path, json=body)
    except httpx.TransportError as error:
        raise HostRefusal(0, f"{type(error).__name__} {error}".strip()) from error
    if not response.is_success:
        raise HostRefusal(response.status_code, response.text[:400], response.headers.get("retry-after", ""))
    return response.text
