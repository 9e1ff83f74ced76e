"""Fireworks: the adapter as a model of the account, loaded into a dedicated deployment of its base.

gavel deploy desk/clerk@12 fireworks:my-account
gavel deploy desk/clerk@12 fireworks:my-account --set deployment=my-qwen     one that is there already

model -> its files -> deployment -> the model loaded into it
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from gavel.trainer.deploy.host import (
    GOES_ON,
    PLAIN_TARGETS,
    Plan,
    Report,
    Resource,
    find_misfits,
    key_of,
    sdk,
    unless_gone,
)
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

_KEY = "FIREWORKS_API_KEY"
_API = "https://api.fireworks.ai"
_RANKS = range(4, 65)
_UPLOAD_SECONDS = 3600.0
_CHECK = f"Check {_KEY} and the account: the key must be of it. {GOES_ON}"
_MISFIT = {400: "What Fireworks says does not fit must be changed in the run; nothing was deployed."}
_QUOTA = "The quota of the account is reached: raise it or undeploy something, and give the same command again."


class FireworksHost:
    """An account of Fireworks."""

    name, key_variable = "fireworks", _KEY
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
        self.place = account
        self._base = base
        self._shared = deployment.rpartition("/")[2]
        self._machine = {"accelerator_type": accelerator, "accelerator_count": accelerators} if accelerator else {}
        self._idle_minutes = idle_minutes
        self._url = os.environ.get("FIREWORKS_BASE_URL", _API).rstrip("/")

    def check(self, adapter: AdapterFacts) -> list[str]:
        hint = None if self._base else "; if Fireworks has it: --set base=accounts/fireworks/models/NAME"
        return find_misfits("Fireworks", adapter, ranks=_RANKS, targets=PLAIN_TARGETS, own_base=hint)

    @asynccontextmanager
    async def plan(self, record: DeploymentRecord, report: Report) -> AsyncGenerator[Plan]:
        name, adapter = record.remote_name, record.adapter
        in_deployment = self._shared or name
        model = f"accounts/{self.place}/models/{name}"
        deployment = f"accounts/{self.place}/deployments/{in_deployment}"
        key = key_of(_KEY, "Make a key at app.fireworks.ai, and set it in .env.")
        async with sdk("fireworks").AsyncFireworks(
            api_key=key, account_id=self.place, base_url=self._url, max_retries=0
        ) as api:

            async def make_model() -> None:
                base = self._base or base_name(adapter.base_model)
                account, _, base_id = base.removeprefix("accounts/").partition("/models/")
                known = await unless_gone(partial(api.models.get, base_id, account_id=account))
                if known is None or known.supports_lora is False:
                    raise DeployError(
                        f"Fireworks {'has no model' if known is None else 'takes no adapters for'} {base}",
                        "Name the one that the adapter is for: --set base=accounts/fireworks/models/NAME.",
                    )
                details = {"base_model": base, "r": adapter.rank, "target_modules": list(adapter.targets)}
                shown = f"{adapter.name} {adapter.step}"
                made = {"kind": "HF_PEFT_ADDON", "peft_details": details, "display_name": shown}
                await api.models.create(model_id=name, model=made)

            async def find_files() -> Any:
                found = await api.models.get(name)
                return found if found.state == "READY" else None

            async def upload() -> None:
                """Idempotent: the files of a model that is not ready may be sent again."""
                sizes = {file.name: str(file.stat().st_size) for file in adapter.files()}
                places = await api.models.get_upload_endpoint(name, filename_to_size=sizes)
                for file in adapter.files():
                    await asyncio.to_thread(_put, file, places.filename_to_signed_urls[file.name], sizes[file.name])
                for warning in (await api.models.validate_upload(name)).warnings or ():
                    report(f"Fireworks: {warning}")

            async def find_deployment() -> Any:
                found = await unless_gone(partial(api.deployments.get, in_deployment))
                return None if found is None or found.state in ("DELETED", "DELETING") else found

            async def make_deployment() -> None:
                if self._shared:
                    raise DeployError(
                        f"there is no deployment {self._shared}",
                        "Make one with addons enabled, or leave deployment=… out.",
                    )
                if await unless_gone(partial(api.deployments.get, name)) is not None:
                    return await api.deployments.undelete(name, body={})
                await api.deployments.create(
                    base_model=self._base or base_name(adapter.base_model),
                    deployment_id=name,
                    enable_addons=True,
                    min_replica_count=0,
                    max_replica_count=1,
                    autoscaling_policy={"scale_to_zero_window": f"{self._idle_minutes * 60}s"},
                    **self._machine,
                )

            async def find_loaded() -> Any:
                async for each in await api.lora.list(filter=f'model="{model}"'):
                    if each.model == model:
                        return each
                return None

            loaded = Resource(
                "the loaded adapter",
                find_loaded,
                make=lambda: api.lora.load(model=model, deployment=deployment),
                remove=lambda: api.lora.unload(loaded.found.name.rpartition("/")[2]),
                state=_state,
                remedies={400: "Does the deployment have addons enabled, and the same base?"},
            )
            resources = [
                Resource(
                    f"the model {name}",
                    find=partial(unless_gone, partial(api.models.get, name)),
                    make=make_model,
                    remove=lambda: api.models.delete(name),
                    remedies=_MISFIT,
                ),
                Resource(
                    f"the upload of {adapter.size / 1e6:.1f} MB",
                    partial(unless_gone, find_files),
                    upload,
                    remedies=_MISFIT,
                ),
                Resource(
                    f"the deployment {in_deployment}",
                    find_deployment,
                    make_deployment,
                    remove=None if self._shared else partial(api.deployments.delete, name, ignore_checks=True),
                    state=_state,
                ),
                loaded,
            ]
            yield Plan(resources, lambda: (f"{self._url}/inference/v1", f"{model}#{deployment}"))

    def costs(self, record: DeploymentRecord) -> str:
        if self._shared:
            return f"Fireworks: the deployment {self._shared} is billed by GPU-second, and is yours to stop"
        return (
            f"Fireworks, dedicated: billed by GPU-second while a replica runs, none after {self._idle_minutes} minutes "
            "without a request (prices: fireworks.ai/pricing)"
        )


open_host = FireworksHost


def base_name(base_model: str) -> str:
    """Fireworks' name of a Hub model: accounts/fireworks/models/qwen2p5-7b for Qwen/Qwen2.5-7B."""
    name = base_model.rpartition("/")[2].lower().replace("meta-llama", "llama")
    if name.startswith("llama-3"):
        name = name.replace("llama-3", "llama-v3", 1)
    return f"accounts/fireworks/models/{name.replace('.', 'p')}"


def _state(found: Any) -> str:
    why = found.status and found.status.message
    if found.state == "FAILED" or (found.state == "STATE_UNSPECIFIED" and why):
        raise DeployError(
            f"Fireworks: {found.name} failed: {why or 'it does not say why'}",
            "Choose another accelerator=… or deployment=…, or undeploy it and try again.",
        )
    return "" if found.state in ("READY", "UPDATING", "DEPLOYED") else str(found.state)


def _put(file: Path, url: str, size: str) -> None:
    headers = {"Content-Type": "application/octet-stream", "x-goog-content-length-range": f"{size},{size}"}
    with file.open("rb") as stream:
        httpx.put(url, content=stream, headers=headers, timeout=_UPLOAD_SECONDS).raise_for_status()
