"""A vLLM server that runs anywhere: the adapter is loaded into it while it serves, under a name of its own.

    gavel deploy desk/clerk@12 vllm:http://10.0.0.2:8000 --set path_map=/home/me/runs=/mnt/runs

The server reads the adapter from a directory, so the run directory must be visible there: under the same path, or under
the one that `path_map` gives. What the server lists decides, not the record: one that was restarted has forgotten its
adapters, and the same command loads it again.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from gavel.base.files import replacing
from gavel.base.network import is_on_this_machine
from gavel.trainer.deploy.host import (
    Deployment,
    Report,
    ask,
    find_misfits,
    key_of,
    place_of_server,
    refused,
    remove,
    retry,
    status_of,
)
from gavel.trainer.deploy.record import CONFIG, WEIGHTS, AdapterFacts, DeployError, DeploymentRecord

KEY_VARIABLE = "VLLM_API_KEY"
RANKS = range(1, 513)
SERVER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that `--max-lora-rank` accepts."""
_LOAD_SECONDS = 300.0


class VllmHost:
    """A running server with runtime updates of adapters."""

    name = "vllm"
    remedies: Mapping[int, str] = {401: f"Check the API key in {KEY_VARIABLE}: the server was started with another."}

    def __init__(self, place: str, *, path_map: str = "", base: str = "") -> None:
        """`place`: the server's address. `path_map`: HERE=THERE, as the server sees a directory of this machine.

        `base`: the base model as the server names it, where that is not the run's name for it. Raises `DeployError`.
        """
        self.place = self._url = place_of_server(place, "vllm:http://HOST:PORT")
        here, sign, there = path_map.partition("=")
        if path_map and not (here and sign and there):
            raise DeployError(f"path_map={path_map!r} does not map a path", "Give HERE=THERE, such as /runs=/mnt/runs.")
        self._path_map = here.rstrip("/"), there.rstrip("/")
        self._base = base

    def check(self, adapter: AdapterFacts) -> list[str]:
        return find_misfits("vLLM", adapter, ranks=RANKS, takes=("rslora", "experts", "embeddings"))

    async def deploy(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Deployment:
        name = record.remote_name
        async with self._client() as client:
            served = await self._served(client)
            self._check_base(adapter, served)
            if name in served:
                report(f"{self._url} serves {name} already")
            else:
                directory = _kept_copy(adapter, record)
                record.begin()
                await self._load(client, name, directory, adapter)
                report(f"{self._url} has loaded {name} from {self._seen(directory)}")
        key = KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else None
        return Deployment(self, record, f"{self._url}/v1", name, key)

    async def status(self, record: DeploymentRecord) -> str:
        async with self._client() as client:
            served = await self._served(client)
        return "serving" if record.remote_name in served else "not loaded there"

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        name = record.remote_name
        async with self._client() as client:
            if name in await self._served(client):
                unload = lambda: _post(client, "/v1/unload_lora_adapter", {"lora_name": name})  # noqa: E731
                await remove(f"{name} at {self._url}", unload, report)
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

    async def _served(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """The models that it lists, by their names."""
        what = f"{self._url} does not list its models as vLLM does"

        async def listed() -> dict[str, Any]:
            return {each["id"]: each for each in (await client.get("/v1/models")).raise_for_status().json()["data"]}

        try:
            return await ask(what, listed)
        except (KeyError, TypeError) as error:
            raise DeployError(what, "Check the address: another server answers there.") from error

    def _check_base(self, adapter: AdapterFacts, served: Mapping[str, Any]) -> None:
        bases = [each for each in served.values() if each.get("parent") is None]
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
        start = f"vllm serve BASE --enable-lora --max-lora-rank {_server_rank(adapter)}"
        if "experts" in adapter.special:
            body["is_3d_lora_weight"] = True  # as PEFT stacks them
            start += " --enable-mixed-moe-lora-format"
        start = f"start it as {start}, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"

        async def loaded() -> str | None:
            return name if name in await self._served(client) else None

        try:
            await retry(lambda: _post(client, "/v1/load_lora_adapter", body), creates=True, find=loaded, patience=30.0)
        except httpx.HTTPError as error:
            text = error.response.text if isinstance(error, httpx.HTTPStatusError) else ""
            why, remedy = "takes no adapters while it runs", f"S{start[1:]}."
            if status_of(error) not in (404, 405) or "adapter" in text.lower():
                why = "does not load the adapter"
                remedy = (
                    f"Look at what it says. It must see {directory} as {body['lora_path']} (mount it there, or "
                    f"--set path_map=HERE=THERE) and take the adapter: {start}."
                )
            raise refused(f"{self._url} {why}", error, dict.fromkeys((400, 404, 405, 500), remedy)) from error

    def _seen(self, directory: Path) -> str:
        """The path of a directory as the server has it."""
        here, there = self._path_map
        path = directory.absolute()
        if not here:
            return str(path)
        if not path.is_relative_to(Path(here).absolute()):
            raise DeployError(f"{path} does not lie in {here}, which path_map maps", "Map the directory of the runs.")
        return str(there / path.relative_to(Path(here).absolute()))


open_host = VllmHost


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


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    """vLLM answers these with a sentence, not with JSON."""
    return (await client.post(path, json=body)).raise_for_status().text


def _server_rank(adapter: AdapterFacts) -> int:
    return next(rank for rank in SERVER_RANKS if rank >= adapter.rank)


def server_arguments(adapter: AdapterFacts, name: str, directory: str, port: int) -> list[str]:
    """Arguments of `vllm serve BASE` for a server of its own, which serves the adapter in a directory as `name`."""
    return [
        f"--port={port}", "--enable-lora", f"--max-lora-rank={_server_rank(adapter)}",
        f"--lora-modules={name}={directory}",
    ]  # fmt: skip


def own_server_misfits(adapter: AdapterFacts) -> list[str]:
    """Why a server that is started for the adapter cannot serve it."""
    found = find_misfits("vLLM", adapter, ranks=RANKS, takes=("rslora", "embeddings"))
    if adapter.base_is_local:
        found.append(
            f"its base {adapter.base_model} is only on this machine, where the server cannot load it: train a model of "
            "the Hugging Face Hub, or use a vLLM of your own (vllm:URL)"
        )
    return found
