"""Fireworks: the adapter as a model of the account, loaded into a dedicated deployment of its base.

    gavel deploy desk/clerk@12 fireworks:my-account
    gavel deploy desk/clerk@12 fireworks:my-account --set deployment=my-qwen     one that is there already

Model, deployment and the loading of one into the other are looked up by the record's name before they are made.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from gavel.trainer.deploy.host import (
    GOES_ON,
    PLAIN_TARGETS,
    Deployment,
    Report,
    ask,
    find_misfits,
    key_of,
    make_once,
    poll_until,
    remove,
    sdk,
    unless_gone,
)
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

if TYPE_CHECKING:
    from fireworks import AsyncFireworks

KEY_VARIABLE = "FIREWORKS_API_KEY"
_API = "https://api.fireworks.ai"
_RANKS = range(4, 65)
_UPLOAD_SECONDS = 3600.0
_CHUNK = 1 << 20
_CHECK = f"Check {KEY_VARIABLE} and the account: the key must be of it. {GOES_ON}"
_MISFIT = "What Fireworks says does not fit must be changed in the run; nothing was deployed."
_QUOTA = "The quota of the account is reached: raise it or undeploy something, and give the same command again."


class FireworksHost:
    """An account of Fireworks."""

    name = "fireworks"
    remedies: Mapping[int, str] = {401: _CHECK, 403: _CHECK, 429: _QUOTA}

    def __init__(
        self,
        place: str,
        *,
        base: str = "",
        deployment: str = "",
        accelerator: str = "",
        accelerators: int = 1,
        idle_minutes: int = 15,
    ) -> None:
        """`place`: the account (default FIREWORKS_ACCOUNT_ID). `base`: accounts/fireworks/models/… of the base model.

        `deployment`: one of the account with addons enabled, that stays; else one is made, of `accelerators` GPUs of
        the kind `accelerator` (NVIDIA_H100_80GB, …; default: the host's choice), without a replica after
        `idle_minutes`.
        """
        account = (place or os.environ.get("FIREWORKS_ACCOUNT_ID", "")).strip("/").removeprefix("accounts/")
        if not account.replace("-", "").isalnum() or not account.isascii():
            raise DeployError(
                f"{account!r} is no name of an account of Fireworks",
                "Give fireworks:ACCOUNT, or FIREWORKS_ACCOUNT_ID.",
            )
        if idle_minutes < 5:
            raise DeployError(f"idle_minutes={idle_minutes} is too short", "Fireworks takes 5 or more.")
        sdk("fireworks")
        self.place = self._account = account
        self._base = base
        self._shared = deployment.rpartition("/")[2]
        self._machine = {"accelerator_type": accelerator, "accelerator_count": accelerators} if accelerator else {}
        self._idle_minutes = idle_minutes
        self._url = os.environ.get("FIREWORKS_BASE_URL", _API).rstrip("/")

    def check(self, adapter: AdapterFacts) -> list[str]:
        found = find_misfits("Fireworks", adapter, ranks=_RANKS, targets=PLAIN_TARGETS)
        if adapter.base_is_local and not self._base:
            found.append(
                f"its base {adapter.base_model} is no model of Fireworks; if it is one by another name: "
                "--set base=accounts/fireworks/models/NAME"
            )
        return found

    async def deploy(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Deployment:
        deployment = self._shared or record.remote_name
        model_id = f"{self._model(record)}#{self._deployment(deployment)}"
        async with self._client() as api:
            await self._make_model(api, adapter, record, report)
            await self._upload(api, adapter, record, report)
            if not self._shared:
                await self._make_deployment(api, adapter, record, report)
            await poll_until(lambda: self._deployment_state(api, deployment), "the deployment", report)
            loaded = await self._load(api, record, deployment)
            await poll_until(lambda: self._loaded_state(api, loaded), "the adapter", report)
        return Deployment(self, record, f"{self._url}/inference/v1", model_id, KEY_VARIABLE)

    async def status(self, record: DeploymentRecord) -> str:
        async with self._client() as api:
            loaded = await self._loaded(api, record)
            return "not loaded" if loaded is None else (await self._loaded_state(api, loaded))[1].lower()

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        name = record.remote_name
        async with self._client() as api:

            async def unloaded() -> tuple[bool | None, str]:
                left = await self._loaded(api, record, ends=True)
                return (True if left is None else None), "it is being unloaded"

            loaded = await self._loaded(api, record)
            if loaded is not None:
                await remove("the loaded adapter", lambda: api.lora.unload(loaded), report)
            await poll_until(unloaded, "the adapter's end", report)
            if not self._shared:  # of the record's name, whatever the record has
                delete = api.deployments.delete
                await remove("the deployment", lambda: delete(name, ignore_checks=True), report)
            await remove("the model", lambda: api.models.delete(name), report)

    def costs(self, record: DeploymentRecord) -> str:
        stop = f"to stop it: gavel undeploy {record.id}"
        if self._shared:
            return f"Fireworks: the deployment {self._shared} is billed by GPU-second, and is yours to stop; {stop}"
        return (
            f"Fireworks, dedicated: billed by GPU-second while a replica runs, none after {self._idle_minutes} minutes "
            f"without a request (prices: fireworks.ai/pricing); {stop}"
        )

    def _client(self) -> "AsyncFireworks":
        key = key_of(KEY_VARIABLE, "Make a key at app.fireworks.ai, and set it in .env.")
        return sdk("fireworks").AsyncFireworks(api_key=key, account_id=self._account, base_url=self._url, max_retries=0)

    def _model(self, record: DeploymentRecord) -> str:
        return f"accounts/{self._account}/models/{record.remote_name}"

    def _deployment(self, name: str) -> str:
        return f"accounts/{self._account}/deployments/{name}"

    async def _make_model(self, api: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> None:
        name, base = record.remote_name, self._base or base_name(adapter.base_model)
        details = {"base_model": base, "r": adapter.rank, "target_modules": list(adapter.targets)}
        model = {"kind": "HF_PEFT_ADDON", "peft_details": details, "display_name": f"{adapter.name} {adapter.step}"}

        async def make() -> Any:
            account, _, base_id = base.removeprefix("accounts/").partition("/models/")
            known = await unless_gone(partial(api.models.get, base_id, account_id=account))
            if known is None or known.supports_lora is False:
                why = "has no model" if known is None else "takes no adapters for"
                raise DeployError(
                    f"Fireworks {why} {base}",
                    "Name the one that the adapter is for: --set base=accounts/fireworks/models/NAME.",
                )
            report(f"making the model {name} over {base}")
            return await api.models.create(model_id=name, model=model)

        find = partial(unless_gone, partial(api.models.get, name))
        await make_once(record, f"the model {name} cannot be made", find, make, {400: _MISFIT})

    async def _upload(self, api: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> None:
        """Idempotent: the files of a model that is not ready may be sent again."""
        name, what, remedies = record.remote_name, "the adapter cannot be uploaded", {400: _MISFIT}

        async def state() -> tuple[bool | None, str]:
            model = await ask(f"the model {name} is gone", lambda: api.models.get(name))
            return (True if model.state == "READY" else None), str(model.state)

        if (await state())[0] is None:
            report(f"uploading {adapter.size / 1e6:.1f} MB")
            sizes = {file.name: str(file.stat().st_size) for file in adapter.files()}
            place = partial(api.models.get_upload_endpoint, name, filename_to_size=sizes)
            urls = (await ask(what, place, remedies=remedies)).filename_to_signed_urls
            for file in adapter.files():
                await ask(what, partial(_put, file, urls[file.name], sizes[file.name]), remedies=remedies)
            checked = await ask(what, lambda: api.models.validate_upload(name), remedies=remedies)
            for warning in checked.warnings or ():
                report(f"Fireworks: {warning}")
            await poll_until(state, "the model", report)

    async def _make_deployment(self, api: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> None:
        name = record.remote_name

        async def find() -> Any:
            found = await unless_gone(lambda: api.deployments.get(name))
            if found is not None and found.state in ("DELETED", "DELETING"):
                await api.deployments.undelete(name, body={})
            return found

        async def make() -> Any:
            report(f"making the deployment {name}: {self.costs(record)}")
            return await api.deployments.create(
                base_model=self._base or base_name(adapter.base_model),
                deployment_id=name,
                enable_addons=True,
                min_replica_count=0,
                max_replica_count=1,
                autoscaling_policy={"scale_to_zero_window": f"{self._idle_minutes * 60}s"},
                **self._machine,
            )

        await make_once(record, "no deployment can be made", find, make)

    async def _load(self, api: Any, record: DeploymentRecord, deployment: str) -> str:
        async def make() -> str:
            made = await api.lora.load(model=self._model(record), deployment=self._deployment(deployment))
            return made.name.rpartition("/")[2]

        find = partial(self._loaded, api, record)
        remedies = {400: "Does the deployment have addons enabled, and the same base?"}
        return await make_once(record, "the adapter cannot be loaded", find, make, remedies)

    async def _loaded(self, api: Any, record: DeploymentRecord, *, ends: bool = False) -> str | None:
        """The id of the loaded model; with `ends`, also of one that is being unloaded."""
        model = self._model(record)

        async def find() -> str | None:
            async for each in await api.lora.list(filter=f'model="{model}"'):
                if each.model == model and (ends or each.state != "UNDEPLOYING"):
                    return each.name.rpartition("/")[2]
            return None

        return await ask("Fireworks does not tell what is loaded", find)

    async def _deployment_state(self, api: Any, name: str) -> tuple[bool | None, str]:
        found = await ask(
            f"there is no deployment {name}",
            lambda: api.deployments.get(name),
            remedies={404: "Make one with addons enabled, or leave deployment=… out."},
        )
        if found.state == "FAILED":
            why = found.status.message if found.status else "it does not say why"
            raise DeployError(f"the deployment {name} failed: {why}", "Choose another accelerator=…, or undeploy it.")
        return (True if found.state in ("READY", "UPDATING") else None), str(found.state)

    async def _loaded_state(self, api: Any, loaded: str) -> tuple[bool | None, str]:
        found = await ask(f"{loaded} is gone", lambda: api.lora.get(loaded))
        if found.state == "STATE_UNSPECIFIED" and found.status and found.status.message:
            raise DeployError(
                f"Fireworks cannot load the adapter: {found.status.message}", "Undeploy it, and try again."
            )
        return (True if found.state == "DEPLOYED" else None), str(found.state)


open_host = FireworksHost


def base_name(base_model: str) -> str:
    """Fireworks' name of a Hub model: accounts/fireworks/models/qwen2p5-7b for Qwen/Qwen2.5-7B."""
    name = base_model.rpartition("/")[2].lower().replace("meta-llama", "llama")
    if name.startswith("llama-3"):
        name = name.replace("llama-3", "llama-v3", 1)
    return f"accounts/fireworks/models/{name.replace('.', 'p')}"


async def _put(file: Path, url: str, size: str) -> None:
    async def content() -> AsyncGenerator[bytes]:
        with file.open("rb") as stream:
            while chunk := await asyncio.to_thread(stream.read, _CHUNK):
                yield chunk

    headers = {"Content-Type": "application/octet-stream", "Content-Length": size}
    headers["x-goog-content-length-range"] = f"{size},{size}"
    async with httpx.AsyncClient(timeout=_UPLOAD_SECONDS) as client:
        (await client.put(url, content=content(), headers=headers)).raise_for_status()
