"""Fireworks: the adapter as a model of the account, loaded into a dedicated deployment of its base.

    gavel deploy desk/clerk@12 fireworks:my-account
    gavel deploy desk/clerk@12 fireworks:my-account --set deployment=my-qwen     one that is there already
    gavel deploy desk/clerk@12 fireworks:my-account --set serverless=true        a preview, for accounts that have it

Model, deployment and the loading of one into the other are looked up by the record's name before they are made.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from gavel.base.extras import install_line
from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.credentials import key_of
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.host import DeployPlan, Report
from gavel.trainer.deploy.record import DeploymentRecord, Ids
from gavel.trainer.deploy.retry import GOES_ON, HostRefusal, refused, repeated, status_of
from gavel.trainer.deploy.waiting import until

if TYPE_CHECKING:
    from fireworks import AsyncFireworks

T = TypeVar("T")
KEY_VARIABLE = "FIREWORKS_API_KEY"
_API = "https://api.fireworks.ai"
_RANKS = range(4, 65)
_TARGETS = frozenset(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
_UPLOAD_SECONDS = 3600.0
_CHUNK = 1 << 20


def open_host(
    place: str,
    *,
    base: str = "",
    deployment: str = "",
    serverless: bool = False,
    accelerator: str = "",
    accelerators: int = 1,
    idle_minutes: int = 15,
) -> "FireworksHost":
    """`place`: the account (default FIREWORKS_ACCOUNT_ID). `base`: accounts/fireworks/models/… of the base model.

    `deployment`: one of the account with addons enabled, that stays; else one is made, of `accelerators` GPUs of the
    kind `accelerator` (NVIDIA_H100_80GB, …; default: the host's choice), without a replica after `idle_minutes`.
    """
    account = place or os.environ.get("FIREWORKS_ACCOUNT_ID", "")
    if not account:
        raise DeployError("Fireworks needs the name of an account", "Give fireworks:ACCOUNT, or FIREWORKS_ACCOUNT_ID.")
    account = account.strip("/").removeprefix("accounts/")
    if not account.replace("-", "").isalnum() or not account.isascii():
        raise DeployError(f"{account!r} is no name of an account of Fireworks", "Give fireworks:ACCOUNT.")
    if serverless and deployment:
        raise DeployError("serverless=true and deployment=… exclude each other", "Leave one of them out.")
    if idle_minutes < 5:
        raise DeployError(f"idle_minutes={idle_minutes} is too short", "Fireworks takes 5 or more.")
    try:
        import fireworks  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise DeployError(
            "the host fireworks needs fireworks-ai, which is not installed", install_line("deploy")
        ) from error
    machine = {"accelerator_type": accelerator, "accelerator_count": accelerators} if accelerator else {}
    return FireworksHost(account, base, deployment, serverless, machine, idle_minutes)


class FireworksHost:
    """An account of Fireworks."""

    name = "fireworks"

    def __init__(
        self, account: str, base: str, deployment: str, serverless: bool, machine: dict[str, Any], idle_minutes: int
    ) -> None:
        self.place = self._account = account
        self._base = base
        self._deployment = deployment.rpartition("/")[2]
        self._serverless = serverless
        self._machine = machine
        self._idle_minutes = idle_minutes
        self._url = os.environ.get("FIREWORKS_BASE_URL", _API).rstrip("/")

    def check(self, adapter: AdapterFacts) -> list[str]:
        misfits: list[str] = []
        if adapter.rank not in _RANKS:
            misfits.append(f"its rank is {adapter.rank}; Fireworks takes {_RANKS[0]} to {_RANKS[-1]} (--lora-rank)")
        if others := sorted(set(adapter.targets) - _TARGETS):
            misfits.append(f"it adapts {', '.join(others)}; Fireworks takes {', '.join(sorted(_TARGETS))}")
        if adapter.special:
            misfits.append(f"it has {', '.join(adapter.special)}; Fireworks takes plain LoRA")
        if adapter.base_is_local and not self._base:
            misfits.append(
                f"its base {adapter.base_model} is no model of Fireworks; if it is one by another name: "
                "--set base=accounts/fireworks/models/NAME"
            )
        return misfits

    async def deploy(self, plan: DeployPlan, record: DeploymentRecord, report: Report) -> Deployment:
        name = record.remote_name
        async with self._client() as api:
            await self._model(api, plan.adapter, record, report)
            await self._upload(api, plan.adapter, record, report)
            if self._serverless:
                target: dict[str, Any] = {"serverless": True}
            else:
                deployment = self._deployment or await self._own_deployment(api, plan.adapter, record, report)
                target = {"deployment": f"accounts/{self._account}/deployments/{deployment}"}
            model_id = f"accounts/{self._account}/models/{name}"
            address = model_id if self._serverless else f"{model_id}#{target['deployment']}"
            served = Deployment(self, record, f"{self._url}/inference/v1", address, KEY_VARIABLE, self.costs(record))
            if not self._serverless:
                ready, state = await self._deployment_state(api, target["deployment"].rpartition("/")[2])
                if ready is None and not plan.wait:
                    report(f"the deployment is {state}: the same command without --no-wait loads the adapter into it")
                    return served
                if ready is None:
                    deployment_id = target["deployment"].rpartition("/")[2]
                    await until(lambda: self._deployment_state(api, deployment_id), "the deployment", report)
            loaded = await self._load(api, record, target, report)
            if plan.wait:
                await until(lambda: self._loaded_state(api, loaded), "the adapter", report)
        return served

    async def status(self, record: DeploymentRecord) -> str:
        async with self._client() as api:
            found = await self._find_loaded(api, record)
            if found is None:
                return "not loaded"
            _, state = await self._loaded_state(api, str(found["id"]))
            return state.lower()

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        name = record.remote_name
        async with self._client() as api:
            found = await self._find_loaded(api, record)
            if found is not None:
                await self._delete(lambda: api.lora.unload(str(found["id"])), "the loaded adapter", report)
                await until(lambda: self._unloaded(api, record), "the adapter's end", report)
            record.forget("loaded")
            if not self._serverless and not self._deployment:  # of the record's name, whatever the record has
                await self._delete(lambda: api.deployments.delete(name, ignore_checks=True), "the deployment", report)
            record.forget("deployment")
            await self._delete(lambda: api.models.delete(name), "the model", report)
            record.forget("upload", "model")

    def costs(self, record: DeploymentRecord) -> str:
        stop = f"to stop it: gavel undeploy {record.id}"
        if self._serverless:
            return f"Fireworks, serverless: billed by token, nothing while it is idle; {stop}"
        if self._deployment:
            return f"Fireworks: the deployment {self._deployment} is billed by GPU-second, and is yours to stop; {stop}"
        return (
            f"Fireworks, dedicated: billed by GPU-second while a replica runs, none after {self._idle_minutes} minutes "
            f"without a request (prices: fireworks.ai/pricing); {stop}"
        )

    def _client(self) -> "AsyncFireworks":
        from fireworks import AsyncFireworks

        key = key_of(KEY_VARIABLE, "Make a key at app.fireworks.ai, and set it in .env.")
        return AsyncFireworks(api_key=key, account_id=self._account, base_url=self._url, max_retries=0)

    async def _model(self, api: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> None:
        name = record.remote_name
        base = self._base or base_name(adapter.base_model)
        details = {"base_model": base, "r": adapter.rank, "target_modules": list(adapter.targets)}

        async def find() -> Ids | None:
            found = await _found(lambda: api.models.get(name))
            return None if found is None else {"name": found.name, "state": found.state}

        async def make() -> Ids:
            report(f"making the model {name} over {base}")
            model = {"kind": "HF_PEFT_ADDON", "peft_details": details, "display_name": f"{adapter.name} {adapter.step}"}

            async def ask() -> Ids:
                made = await api.models.create(model_id=name, model=model)
                return {"name": made.name, "state": made.state}

            return await repeated(ask, creates=True, find=find)

        if record.done("model") is None:
            account, _, base_id = base.removeprefix("accounts/").partition("/models/")
            known = await self._ask(
                lambda: _found(lambda: api.models.get(base_id, account_id=account)),
                f"Fireworks does not tell of {base}",
            )
            if known is None or known.supports_lora is False:
                why = "has no model" if known is None else "takes no adapters for"
                raise DeployError(
                    f"Fireworks {why} {base}",
                    "Name the one that the adapter is for: --set base=accounts/fireworks/models/NAME.",
                )
        await self._ask(
            lambda: record.once("model", find=find, make=make), f"the model {name} cannot be made", {400: _MISFIT}
        )

    async def _upload(self, api: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> None:
        """Idempotent: the files of a model that is not ready may be sent again."""
        name = record.remote_name
        if record.done("upload") is not None:
            return
        what = "the adapter cannot be uploaded"
        model = await self._ask(lambda: repeated(lambda: api.models.get(name)), what)
        if model.state != "READY":
            record.begin("upload")
            sizes = {file.name: str(file.stat().st_size) for file in adapter.files()}
            report(f"uploading {adapter.size / 1e6:.1f} MB")
            given = await self._ask(
                lambda: repeated(lambda: api.models.get_upload_endpoint(name, filename_to_size=sizes)), what
            )
            for file in adapter.files():
                url = given.filename_to_signed_urls[file.name]
                size = int(sizes[file.name])
                await self._ask(lambda file=file, url=url, size=size: repeated(lambda: _put(file, url, size)), what)
            checked = await self._ask(lambda: repeated(lambda: api.models.validate_upload(name)), what, {400: _MISFIT})
            for warning in checked.warnings or ():
                report(f"Fireworks: {warning}")
            await until(lambda: self._model_state(api, name), "the model", report)
        record.finish("upload")

    async def _own_deployment(self, api: Any, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> str:
        name = record.remote_name

        async def find() -> Ids | None:
            found = await _found(lambda: api.deployments.get(name))
            if found is not None and found.state in ("DELETED", "DELETING"):
                await repeated(lambda: api.deployments.undelete(name, body={}))
            return None if found is None else {"name": name}

        async def make() -> Ids:
            report(f"making the deployment {name}: {self.costs(record)}")
            policy = {"scale_to_zero_window": f"{self._idle_minutes * 60}s"}

            async def ask() -> Ids:
                await api.deployments.create(
                    base_model=self._base or base_name(adapter.base_model),
                    deployment_id=name,
                    enable_addons=True,
                    min_replica_count=0,
                    max_replica_count=1,
                    autoscaling_policy=policy,
                    **self._machine,
                )
                return {"name": name}

            return await repeated(ask, creates=True, find=find)

        await self._ask(lambda: record.once("deployment", find=find, make=make), "no deployment can be made")
        return name

    async def _load(self, api: Any, record: DeploymentRecord, target: dict[str, Any], report: Report) -> str:
        model = f"accounts/{self._account}/models/{record.remote_name}"

        async def find() -> Ids | None:
            return await self._find_loaded(api, record)

        async def make() -> Ids:
            report("loading the adapter")

            async def ask() -> Ids:
                return {"id": (await api.lora.load(model=model, **target)).name.rpartition("/")[2]}

            return await repeated(ask, creates=True, find=find)

        remedies = {400: "Fireworks takes no adapter there: try a dedicated deployment, without serverless=true."}
        loaded = await self._ask(
            lambda: record.once("loaded", find=find, make=make),
            "the adapter cannot be loaded",
            remedies if self._serverless else {400: "Does the deployment have addons enabled, and the same base?"},
        )
        return str(loaded["id"])

    async def _find_loaded(self, api: Any, record: DeploymentRecord) -> Ids | None:
        model = f"accounts/{self._account}/models/{record.remote_name}"

        async def ask() -> Ids | None:
            async for each in await _listed(api, model):
                if each.model == model and each.state != "UNDEPLOYING":
                    return {"id": each.name.rpartition("/")[2]}
            return None

        return await self._ask(lambda: repeated(ask), "Fireworks does not list what is loaded")

    async def _unloaded(self, api: Any, record: DeploymentRecord) -> tuple[bool | None, str]:
        model = f"accounts/{self._account}/models/{record.remote_name}"
        left = [each async for each in await _listed(api, model) if each.model == model]
        return (None, "UNDEPLOYING") if left else (True, "")

    async def _model_state(self, api: Any, name: str) -> tuple[bool | None, str]:
        model = await self._ask(lambda: repeated(lambda: api.models.get(name)), f"the model {name} is gone")
        return (True if model.state == "READY" else None), str(model.state)

    async def _deployment_state(self, api: Any, name: str) -> tuple[bool | None, str]:
        found = await self._ask(
            lambda: repeated(lambda: api.deployments.get(name)),
            f"there is no deployment {name}",
            {404: "Make one with addons enabled, or leave deployment=… out."},
        )
        if found.state == "FAILED":
            why = found.status.message if found.status else "it does not say why"
            raise DeployError(f"the deployment {name} failed: {why}", "Choose another accelerator=…, or undeploy it.")
        return (True if found.state in ("READY", "UPDATING") else None), str(found.state)

    async def _loaded_state(self, api: Any, loaded: str) -> tuple[bool | None, str]:
        found = await self._ask(lambda: repeated(lambda: api.lora.get(loaded)), f"{loaded} is gone")
        if found.state == "STATE_UNSPECIFIED" and found.status and found.status.message:
            raise DeployError(
                f"Fireworks cannot load the adapter: {found.status.message}", "Undeploy it, and try again."
            )
        return (True if found.state == "DEPLOYED" else None), str(found.state)

    async def _delete(self, ask: Callable[[], Awaitable[Any]], what: str, report: Report) -> None:
        async def once() -> None:
            try:
                await ask()
            except Exception as error:
                if status_of(error) != 404:
                    raise
            else:
                report(f"removed {what}")

        await self._ask(lambda: repeated(once), f"{what} cannot be removed")

    async def _ask(self, ask: Callable[[], Awaitable[T]], what: str, remedies: dict[int, str] | None = None) -> T:
        from fireworks import APIError

        try:
            return await ask()
        except (APIError, HostRefusal, httpx.TransportError) as error:
            raise refused(what, error, {**_REMEDIES, **(remedies or {})}) from error


_MISFIT = "What Fireworks says does not fit must be changed in the run; nothing was deployed."
_REMEDIES = {
    401: f"Check {KEY_VARIABLE}, and that it is of this account. {GOES_ON}",
    403: f"Check {KEY_VARIABLE}, and that it is of this account. {GOES_ON}",
    429: "The account's quota is reached: raise it or undeploy something, and give the same command again.",
}


def base_name(base_model: str) -> str:
    """What Fireworks calls a model of the Hub: Qwen/Qwen2.5-7B is accounts/fireworks/models/qwen2p5-7b."""
    name = base_model.rpartition("/")[2].lower().replace("meta-llama", "llama")
    if name.startswith("llama-3"):
        name = name.replace("llama-3", "llama-v3", 1)
    return f"accounts/fireworks/models/{name.replace('.', 'p')}"


async def _found(ask: Callable[[], Awaitable[T]]) -> T | None:
    try:
        return await repeated(ask)
    except Exception as error:
        if status_of(error) == 404:
            return None
        raise


async def _listed(api: Any, model: str) -> Any:
    return await api.lora.list(filter=f'model="{model}"')


async def _put(file: Path, url: str, size: int) -> None:
    async def content() -> AsyncGenerator[bytes]:
        with file.open("rb") as stream:
            while chunk := await asyncio.to_thread(stream.read, _CHUNK):
                yield chunk

    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(size),
        "x-goog-content-length-range": f"{size},{size}",
    }
    async with httpx.AsyncClient(timeout=_UPLOAD_SECONDS) as client:
        response = await client.put(url, content=content(), headers=headers)
    if not response.is_success:
        raise HostRefusal(response.status_code, f"the upload of {file.name} was refused")
