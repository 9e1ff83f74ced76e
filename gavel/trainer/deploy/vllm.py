"""A vLLM server that runs anywhere: the adapter is loaded into it while it serves, under a name of its own.

    gavel deploy desk/clerk@12 vllm:http://10.0.0.2:8000 --set path_map=/home/me/runs=/mnt/runs

The server reads the adapter from a directory, so the run directory must be visible there: under the same path, or under
the one that `path_map` gives. What the server lists decides, not the record: one that was restarted has forgotten its
adapters, and the same command loads it again.
"""

import os
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gavel.base.files import replacing
from gavel.base.network import is_on_this_machine
from gavel.trainer.deploy.host import Plan, Report, Resource, find_misfits, key_of, place_of_server
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

RANKS = range(1, 513)
_SERVER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that `--max-lora-rank` accepts."""
_KEY = "VLLM_API_KEY"
_LOAD_SECONDS = 300.0


class VllmHost:
    """A running server with runtime updates of adapters."""

    name = "vllm"
    remedies: Mapping[int, str] = {401: f"Check the API key in {_KEY}: the server was started with another."}

    def __init__(self, place: str, *, path_map: str = "", base: str = "") -> None:
        """`place`: the server's address. `path_map`: HERE=THERE, as the server sees a directory of this machine.

        `base`: the base model as the server names it, where that is not the run's name for it. Raises `DeployError`.
        """
        self.place = self._url = place_of_server(place, "vllm:http://HOST:PORT")
        self.key_variable = _KEY if os.environ.get(_KEY) else None
        here, sign, there = path_map.partition("=")
        if path_map and not (here and sign and there):
            raise DeployError(f"path_map={path_map!r} does not map a path", "Give HERE=THERE, such as /runs=/mnt/runs.")
        self._path_map = here.rstrip("/"), there.rstrip("/")
        self._base = base

    def check(self, adapter: AdapterFacts) -> list[str]:
        return find_misfits("vLLM", adapter, ranks=RANKS, takes=("rslora", "experts", "embeddings"))

    @asynccontextmanager
    async def plan(self, record: DeploymentRecord, report: Report) -> AsyncGenerator[Plan]:
        name, adapter = record.remote_name, record.adapter
        body: dict[str, Any] = {"lora_name": name, "lora_path": self._seen(record.directory)}
        start = f"vllm serve BASE --enable-lora --max-lora-rank {server_rank(adapter)}"
        if "experts" in adapter.special:
            body["is_3d_lora_weight"] = True  # as PEFT stacks them
            start += " --enable-mixed-moe-lora-format"
        remedy = (
            f"Start it as {start}, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True. It must see {record.directory} as "
            f"{body['lora_path']}: mount it there, or --set path_map=HERE=THERE."
        )
        headers = {"Authorization": f"Bearer {key_of(self.key_variable)}"} if self.key_variable else {}
        no_proxy = is_on_this_machine(self._url)
        async with httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=_LOAD_SECONDS, trust_env=not no_proxy
        ) as client:

            async def post(path: str, body: dict[str, Any]) -> None:
                (await client.post(path, json=body)).raise_for_status()

            async def find() -> Any:
                return (await self._served(client)).get(name)

            async def load() -> None:
                self._check_base(adapter, await self._served(client))
                record.directory.mkdir(parents=True, exist_ok=True)
                for file in adapter.files():  # vLLM reads them again at times, and a checkpoint may be deleted
                    with replacing(record.directory / file.name) as unfinished:
                        shutil.copyfile(file, unfinished)
                await post("/v1/load_lora_adapter", body)

            async def unload() -> None:
                await post("/v1/unload_lora_adapter", {"lora_name": name})

            refused: dict[int, str] = dict.fromkeys((400, 404, 405, 500), remedy)
            loaded = Resource(f"{name} at {self._url}", find, load, unload, remedies=refused)
            yield Plan([loaded], lambda: (f"{self._url}/v1", name))

    def costs(self, record: DeploymentRecord) -> str:
        return f"vLLM at {self._url}: the server, which is yours to stop, costs what its machine costs"

    async def _served(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """The models that it lists, by their names."""
        listed: Any = (await client.get("/v1/models")).raise_for_status().json()
        try:
            return {each["id"]: each for each in listed["data"]}
        except (KeyError, TypeError) as error:
            raise DeployError(
                f"{self._url} does not list its models as vLLM does", "Check the address: another server answers there."
            ) from error

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


def server_rank(adapter: AdapterFacts) -> int:
    """The value of `--max-lora-rank` for a server of this adapter."""
    return next(rank for rank in _SERVER_RANKS if rank >= adapter.rank)
