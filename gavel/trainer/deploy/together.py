"""Together, by its v2 interface: an adapter on a dedicated deployment of its base model.

    model -> upload -> endpoint -> deployment -> attachment -> traffic -> serving

Every thing has the record's deterministic name and is looked up by it before it is created. Needs TOGETHER_API_KEY and
TOGETHER_PROJECT_ID. The deployment stops by itself after `inactive_minutes` without a request.

The files of an adapter to Together in parts of 20 MiB; an upload that was cut off goes on with the missing parts.

The hash of a file is the MD5 of its one part, or the MD5 of its parts' MD5s with their number behind it.
"""

import asyncio
import hashlib
import importlib
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx

from gavel.base.extras import install_line
from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.credentials import key_of
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.host import DeployPlan, Report
from gavel.trainer.deploy.record import DeploymentRecord, Ids
from gavel.trainer.deploy.retry import HostRefusal, refused, repeated, status_of

_MODES = ("ADAPTER_MODE_DYNAMIC", "ADAPTER_MODE_FIXED")
"""Deployments that load adapters, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base model of the catalogue, with the profile that is deployed."""

    base_model_id: str
    model: str
    """Resource name of what is deployed."""
    config: str
    """Resource name of the config revision."""
    hardware: str
    price: str
    """In a few words; says so where it is not known."""


async def find_base(client: Any, adapter: AdapterFacts, config: str) -> Base:
    """The base model of an adapter; `config` chooses among its profiles. Raises `DeployError` with what would do."""
    search = adapter.base_model.rpartition("/")[2]
    wanted: Any = None
    others: list[str] = []
    async for each in client.models.list_supported(search=search, product="PRODUCT_DEDICATED"):
        if str(each.name).lower() == adapter.base_model.lower():
            wanted = each
            break
        others.append(str(each.name))
    if wanted is None:
        near = f"It has {', '.join(others[:5])}." if others else "See `tg models list-supported`."
        raise DeployError(f"Together's catalogue has no {adapter.base_model} for dedicated inference", near)
    profiles = [each for each in wanted.deployment_profiles or () if each.adapter_mode in _MODES]
    if not profiles:
        raise DeployError(
            f"Together serves {adapter.base_model} without adapters",
            "Train another base, or deploy elsewhere: gavel deploy RUN vllm:http://HOST:PORT",
        )
    chosen = [each for each in profiles if not config or config in (each.profile_id, each.config.rpartition("/")[2])]
    if not chosen:
        there = ", ".join(str(each.profile_id) for each in profiles)
        raise DeployError(f"{adapter.base_model} has no config {config!r}", f"It has: {there}.")
    profile = min(chosen, key=lambda each: (_MODES.index(each.adapter_mode), each.gpu_count))
    return Base(
        base_model_id=wanted.base_model_id or wanted.id,
        model=profile.model,
        config=profile.config,
        hardware=f"{profile.gpu_count} × {profile.gpu_type}",
        price=await _price(client, profile.gpu_type, profile.gpu_count),
    )


async def _price(client: Any, gpu_type: str, gpu_count: int) -> str:
    listed = await client.endpoints.hardware.list()
    for each in listed.data or ():
        if gpu_type in (each.gpu_type, each.id) and each.gpu_count == gpu_count:
            return f"{each.price_cents_per_hour / 100:.2f} USD an hour for each replica while it runs"
    return "the price per hour is not known here (see Together's console)"


PART = 20 * 2**20
_AT_ONCE = 4
_PART_SECONDS = 600.0
_VALIDATION_SECONDS, _POLL = 900.0, 3.0


async def upload_adapter(client: Any, record: DeploymentRecord, adapter: AdapterFacts, model: str) -> Ids:
    """Uploads to `model` and waits until the revision is valid; gives `revision`. Raises `DeployError`."""
    revision = await _newest_revision(client, model)
    if revision is None:
        if not record.begun_stage("upload"):
            record.begin("upload", parts={})
        revision = await _upload(client, record, adapter.files(), model)
    await _until_valid(client, model, revision)
    return record.finish("upload", revision=revision)


async def _upload(client: Any, record: DeploymentRecord, files: list[Path], model: str) -> str:
    hashes = {file.name: await asyncio.to_thread(file_hash, file) for file in files}
    by_name = {file.name: file for file in files}
    asked = [{"path": name, "hash": hashes[name], "numParts": part_count(by_name[name])} for name in by_name]
    planned = await _post(client, "create", {"objectId": model, "files": asked})
    done: list[dict[str, Any]] = []
    for remote in planned.get("files") or ():
        name = str(remote["path"])
        if name not in by_name:
            raise DeployError(f"together asks for a file that was not offered: {name}", "Give the same command again.")
        if remote.get("skipUpload"):
            done.append({"path": name, "hash": hashes[name], "skipUpload": True})
            continue
        parts = await _put_parts(record, by_name[name], remote)
        details = {"uploadId": remote.get("uploadId", ""), "parts": parts}
        done.append({"path": name, "hash": hashes[name], "uploadDetails": details})
    completed = await _post(client, "complete", {"objectId": model, "files": done})
    revision = completed.get("revisionId") or await _newest_revision(client, model)
    if not revision:
        raise DeployError("together made no revision of the uploaded files", "Give the same command again.")
    return str(revision)


async def _put_parts(record: DeploymentRecord, file: Path, remote: dict[str, Any]) -> list[dict[str, Any]]:
    """Puts what the record does not know to be there, a few at once; the record learns of each."""
    upload = str(remote.get("uploadId", ""))
    known: dict[str, str] = record.stages["upload"]["parts"].setdefault(upload, {})
    if len(remote["parts"]) != part_count(file):
        raise DeployError(f"together wants {len(remote['parts'])} parts of {file.name}", "Give the same command again.")
    turns = asyncio.Semaphore(_AT_ONCE)

    async def put(http: httpx.AsyncClient, part: dict[str, Any]) -> None:
        number = int(part["partNumber"])
        if str(number) in known:
            return
        async with turns:
            content = await asyncio.to_thread(_read_part, file, number)
            try:
                known[str(number)] = await repeated(lambda: _put(http, part, content))
            except HostRefusal as error:
                raise refused(f"together: part {number} of {file.name} cannot be uploaded", error, _EXPIRED) from error
        record.save()

    async with httpx.AsyncClient(timeout=_PART_SECONDS) as http:
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in remote["parts"]:
                    tasks.create_task(put(http, part))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return [{"partNumber": number, "hash": known[str(number)]} for number in range(1, part_count(file) + 1)]


async def _put(http: httpx.AsyncClient, part: dict[str, Any], content: bytes) -> str:
    """The hash that the store gives the part."""
    try:
        answer = await http.put(str(part["url"]), content=content, headers=part.get("headers") or {})
    except httpx.TransportError as error:
        raise HostRefusal(0, type(error).__name__) from None  # its text would hold the signed address
    if not answer.is_success:
        raise HostRefusal(answer.status_code, answer.text[:200], answer.headers.get("retry-after", ""))
    found = answer.headers.get("etag", "").strip().strip('"')
    if not found:
        raise HostRefusal(502, "the store gave no ETag")
    return found


async def _until_valid(client: Any, model: str, revision: str) -> None:
    try:
        async with asyncio.timeout(_VALIDATION_SECONDS):
            while True:
                rows = [row for row in await _revisions(client, model) if row.revision_id == revision]
                state = str((rows[0].validation_status if rows else "") or "")
                if state.endswith(("_FAILED", "_ERROR")):
                    said = "; ".join(str(each.message or each.rule) for each in rows[0].validation_errors or ())
                    raise DeployError(
                        f"together refuses the uploaded adapter: {said or state}",
                        "Remove it (gavel undeploy), and deploy an adapter that fits: see docs/deploy.md.",
                    )
                if not state.endswith("_PENDING"):
                    return
                await asyncio.sleep(_POLL)
    except TimeoutError as error:
        raise DeployError("together is still validating the adapter", "Give the same command again.") from error


async def _newest_revision(client: Any, model: str) -> str | None:
    rows = await _revisions(client, model)
    return str(max(rows, key=lambda row: row.created_at).revision_id) if rows else None


async def _revisions(client: Any, model: str) -> list[Any]:
    try:
        return list((await repeated(lambda: client.models.list_revisions(model))).data or ())
    except Exception as error:
        if status_of(error) is None:
            raise
        raise refused("together: the revisions cannot be listed", error) from error


async def _post(client: Any, call: str, body: dict[str, Any]) -> dict[str, Any]:
    """`create` gives the same upload again for the same hashes; `complete` is repeated where none was made."""
    path = f"/v2/projects/{client.project_id}/models/upload/{call}"

    async def made() -> dict[str, Any] | None:
        revision = await _newest_revision(client, str(body["objectId"])) if call == "complete" else None
        return {"revisionId": revision} if revision else None

    async def ask() -> dict[str, Any]:
        return cast("dict[str, Any]", await client.post(path, cast_to=object, body=body))

    try:
        return await repeated(ask, creates=True, find=made)
    except Exception as error:
        if status_of(error) is None:
            raise
        raise refused(f"together: the upload cannot be {call}d", error) from error


def part_count(file: Path) -> int:
    return max(1, math.ceil(file.stat().st_size / PART))


def file_hash(file: Path) -> str:
    """As Together wants it."""
    with file.open("rb") as stream:
        digests = [hashlib.md5(part, usedforsecurity=False).digest() for part in iter(lambda: stream.read(PART), b"")]
    if len(digests) == 1:
        return digests[0].hex()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def _read_part(file: Path, number: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek((number - 1) * PART)
        return stream.read(PART)


_EXPIRED = {403: "The signed address has expired; the same command asks for another and goes on."}


T = TypeVar("T")
KEY_VARIABLE, PROJECT_VARIABLE = "TOGETHER_API_KEY", "TOGETHER_PROJECT_ID"
TARGETS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
"""What Together's adapter deployments load, by its documentation; its validation has the last word on the rank."""
_FAILED, _ENDED = "DEPLOYMENT_STATE_FAILED", ("DEPLOYMENT_STATE_STOPPED", "DEPLOYMENT_STATE_STOPPING")
_READY = ("DEPLOYMENT_STATE_READY", "DEPLOYMENT_STATE_SCALING")
_INACTIVE = (30, 1440)
_GONE_SECONDS = 900.0


def open_host(
    place: str, *, project: str = "", config: str = "", inactive_minutes: int = 30, replicas: int = 1, poll: float = 5.0
) -> "TogetherHost":
    """`project`: default TOGETHER_PROJECT_ID. `config`: a config revision of the base (cr_…), where it has several.

    `inactive_minutes` (30 to 1440): a deployment without requests stops after it. `poll`: seconds between two looks.
    Raises `DeployError`.
    """
    if place:
        raise DeployError(f"together takes no address ({place!r})", "Write: together")
    if not _INACTIVE[0] <= inactive_minutes <= _INACTIVE[1]:
        raise DeployError(f"inactive_minutes={inactive_minutes} is not taken", "Together takes 30 to 1440.")
    if replicas < 1:
        raise DeployError(f"replicas={replicas} serves nothing", "Give 1 or more.")
    return TogetherHost(project, config, inactive_minutes, replicas, poll)


class TogetherHost:
    """Drives the `together` package; its parts of a file are put with httpx, as that package's own command does."""

    name = "together"

    def __init__(self, project: str, config: str, inactive_minutes: int, replicas: int, poll: float) -> None:
        self.place = ""
        self._project = project
        self._config = config
        self._inactive_minutes = inactive_minutes
        self._replicas = replicas
        self._poll = poll

    def check(self, adapter: AdapterFacts) -> list[str]:
        misfits: list[str] = []
        if adapter.base_is_local:
            misfits.append(
                f"its base {adapter.base_model} is only on this machine; Together serves models of its catalogue, such "
                "as Qwen/Qwen3-8B. A vLLM of your own serves any base: gavel deploy RUN vllm:http://HOST:PORT"
            )
        if others := sorted(set(adapter.targets) - TARGETS):
            misfits.append(f"it adapts {', '.join(others)}; Together takes {', '.join(sorted(TARGETS))}")
        for special in adapter.special:
            if special != "rslora":
                misfits.append(f"it has {special}; Together takes plain LoRA")
        return misfits

    async def deploy(self, plan: DeployPlan, record: DeploymentRecord, report: Report) -> Deployment:
        adapter, name = plan.adapter, record.remote_name
        async with self._client() as client:
            base = await self._asked(lambda: find_base(client, adapter, self._config), "the catalogue cannot be read")
            model = await self._model(client, record, base, name)
            revision = record.done("upload")
            if revision is None:
                report(f"together: uploading {adapter.size / 1e6:,.0f} MB as {model['name']}")
                revision = await upload_adapter(client, record, adapter, model["id"])
            report(f"together: {base.hardware}, {base.price}; it stops after {self._inactive_minutes} idle minutes")
            endpoint = await record.once(
                "endpoint",
                find=lambda: self._found(client.endpoints.list(filter=f'name="{name}"'), name),
                make=lambda: self._made(
                    lambda: client.endpoints.create(name=name, visibility="VISIBILITY_PRIVATE"),
                    "the endpoint cannot be made",
                ),
            )
            deployment = await self._deployment(client, record, base, endpoint["id"], name)
            await self._attach(client, record, endpoint["id"], deployment["id"], model["id"], revision["revision"])
            await self._route(client, record, endpoint["id"], deployment["id"])
            if plan.wait:
                await self._until_ready(client, endpoint["id"], deployment["id"], model["id"], report)
            base_url = f"{str(client.base_url).rstrip('/')}/v1"
        model_id = f"{endpoint['name']}:{model['name']}"
        return Deployment(self, record, base_url, model_id, KEY_VARIABLE, self.costs(record))

    async def status(self, record: DeploymentRecord) -> str:
        async with self._client() as client:
            endpoint, deployment = await self._standing(client, record)
            if endpoint is None or deployment is None:
                return "not there"
            found = await self._asked(
                lambda: client.endpoints.deployments.retrieve(deployment["id"], endpoint_id=endpoint["id"]),
                "the deployment cannot be read",
            )
            return str(found.status.state).removeprefix("DEPLOYMENT_STATE_").lower()

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        async with self._client() as client:
            endpoint, deployment = await self._standing(client, record)
            if endpoint is not None:
                await self._gone(
                    lambda: client.endpoints.update(endpoint["id"], traffic_split=[], update_mask="trafficSplit")
                )
            if endpoint is not None and deployment is not None:
                where = {"endpoint_id": endpoint["id"]}
                stop = {"min_replicas": 0, "max_replicas": 0}
                await self._gone(
                    lambda: client.endpoints.deployments.update(
                        deployment["id"], autoscaling=stop, update_mask="autoscaling", **where
                    )
                )
                await self._gone(lambda: client.endpoints.deployments.delete(deployment["id"], **where))
                report("together: the deployment is deleted")
            record.forget("attachment", "traffic", "deployment")
            if endpoint is not None:
                await self._gone(lambda: client.endpoints.delete(endpoint["id"]))
                report("together: the endpoint is deleted")
            record.forget("endpoint")
            model = await self._found(client.models.list(), record.remote_name)
            if model is not None:
                await self._gone(lambda: client.models.delete(model["id"]))
                report("together: the uploaded adapter is deleted")
            record.forget("model", "upload")

    def costs(self, record: DeploymentRecord) -> str:
        price = (record.done("deployment") or {}).get("price", "its GPUs are billed by the minute while it runs")
        return (
            f"Together: {price}; it stops by itself after {self._inactive_minutes} minutes without a request. "
            f"To stop it now and remove everything: gavel undeploy {record.id}"
        )

    async def _model(self, client: Any, record: DeploymentRecord, base: Base, name: str) -> Ids:
        return await record.once(
            "model",
            find=lambda: self._found(client.models.list(), name),
            make=lambda: self._made(
                lambda: client.models.create(
                    name=name, type="adapter", base_model_id=base.base_model_id, description="LoRA trained with Gavel"
                ),
                "the model cannot be made",
            ),
        )

    async def _deployment(self, client: Any, record: DeploymentRecord, base: Base, endpoint: str, name: str) -> Ids:
        found = await record.once(
            "deployment",
            find=lambda: self._found(client.endpoints.deployments.list(endpoint), name),
            make=lambda: self._made(
                lambda: client.endpoints.deployments.create(
                    endpoint,
                    name=name,
                    model=base.model,
                    config=base.config,
                    autoscaling={"min_replicas": self._replicas, "max_replicas": self._replicas},
                    inactive_timeout=self._inactive_minutes,
                ),
                "the deployment cannot be made",
            ),
        )
        return found if "price" in found else record.finish("deployment", **found, price=base.price)

    async def _attach(
        self, client: Any, record: DeploymentRecord, endpoint: str, deployment: str, model: str, revision: str
    ) -> None:
        where = {"endpoint_id": endpoint, "deployment_id": deployment}

        async def find() -> Ids | None:
            async def attached() -> Ids | None:
                listed = await client.endpoints.adapters.list(**where)
                found = [each for each in listed.data or () if each.adapter_model_id == model]
                return {"id": found[0].id} if found else None

            return await self._asked(attached, "the adapters of the deployment cannot be listed")

        async def make() -> Ids:
            found = await self._asked(
                lambda: client.endpoints.adapters.create(adapter_model_id=model, adapter_revision_id=revision, **where),
                "the adapter cannot be attached",
                creates=True,
            )
            return {"id": found.id}

        await record.once("attachment", find=find, make=make)

    async def _route(self, client: Any, record: DeploymentRecord, endpoint: str, deployment: str) -> None:
        """Sends the endpoint's traffic to the deployment; the same request may be sent again."""
        if record.done("traffic") is not None:
            return
        split = [{"deployment_id": deployment, "weight": 1.0}]
        await self._asked(
            lambda: client.endpoints.update(endpoint, traffic_split=split, update_mask="trafficSplit"),
            "the endpoint cannot be routed",
        )
        record.finish("traffic")

    async def _until_ready(self, client: Any, endpoint: str, deployment: str, model: str, report: Report) -> None:
        """Returns when the deployment and its adapter are ready; the caller sets the deadline."""
        told = ""
        while True:
            found = await self._asked(
                lambda: client.endpoints.deployments.retrieve(deployment, endpoint_id=endpoint),
                "the deployment cannot be read",
            )
            state, message = str(found.status.state), str(found.status.message)
            if state == _FAILED:
                raise DeployError(f"together: the deployment failed: {message}", _AFTER_FAILURE)
            if state in _ENDED:
                await self._asked(
                    lambda: client.endpoints.deployments.update(
                        deployment,
                        endpoint_id=endpoint,
                        autoscaling={"min_replicas": self._replicas, "max_replicas": self._replicas},
                        update_mask="autoscaling",
                    ),
                    "the deployment cannot be started again",
                )
            listed = await self._asked(
                lambda: client.endpoints.adapters.list(endpoint_id=endpoint, deployment_id=deployment),
                "the adapters of the deployment cannot be listed",
            )
            rows = [
                row for each in listed.data or () if each.adapter_model_id == model for row in each.per_cluster or ()
            ]
            states = {str(row.state).removeprefix("ADAPTER_LOAD_STATE_").lower() for row in rows}
            for row in rows:
                if row.state == "ADAPTER_LOAD_STATE_FAILED" or row.adapter_valid is False:
                    why = row.adapter_valid_reason or row.message or row.reason or "no reason was given"
                    raise DeployError(f"together: the adapter does not load: {why}", _AFTER_FAILURE)
            if state in _READY and states == {"ready"}:
                return
            now = f"{state.removeprefix('DEPLOYMENT_STATE_').lower()}, adapter {', '.join(sorted(states)) or 'pending'}"
            if now != told:
                report(f"together: {now}")
                told = now
            await asyncio.sleep(self._poll)

    async def _standing(self, client: Any, record: DeploymentRecord) -> tuple[Ids | None, Ids | None]:
        """The endpoint and the deployment of this name, as far as they are there."""
        name = record.remote_name
        endpoint = await self._found(client.endpoints.list(filter=f'name="{name}"'), name)
        if endpoint is None:
            return None, None
        return endpoint, await self._found(client.endpoints.deployments.list(endpoint["id"]), name)

    async def _found(self, listing: AsyncIterator[Any], name: str) -> Ids | None:
        """The thing whose name ends so, in all pages of a listing."""

        async def search() -> Ids | None:
            async for each in listing:
                if str(each.name).rpartition("/")[2] == name:
                    return {"id": each.id, "name": each.name}
            return None

        return await self._asked(search, "what is there cannot be listed")

    async def _made(self, make: Callable[[], Awaitable[Any]], what: str) -> Ids:
        made = await self._asked(make, what, creates=True)
        return {"id": made.id, "name": made.name}

    async def _gone(self, remove: Callable[[], Awaitable[Any]]) -> None:
        """Removes, while what is being stopped still refuses it (409); what is not there is gone."""
        try:
            async with asyncio.timeout(_GONE_SECONDS):
                while True:
                    try:
                        await repeated(remove)
                        return
                    except Exception as error:
                        if status_of(error) == 404:
                            return
                        if status_of(error) is None:
                            raise
                        if status_of(error) not in (409, 412):
                            raise refused("together: it cannot be removed", error) from error
                    await asyncio.sleep(self._poll)
        except TimeoutError as error:
            raise DeployError("together: it is not stopped yet", "Give the same command again.") from error

    async def _asked(self, ask: Callable[[], Awaitable[T]], what: str, *, creates: bool = False) -> T:
        """What the API answers; a `DeployError` for what it refuses, and for no other error."""
        try:
            return await repeated(ask, creates=creates)
        except Exception as error:
            if isinstance(error, DeployError) or status_of(error) is None:
                raise
            raise refused(f"together: {what}", error, _REMEDIES) from error

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Any]:
        try:
            sdk: Any = importlib.import_module("together")
        except ImportError as error:
            raise DeployError(
                "together needs its own package, which is not installed", install_line("deploy")
            ) from error
        project = self._project or os.environ.get(PROJECT_VARIABLE, "")
        key = key_of(KEY_VARIABLE)
        if not project:
            raise DeployError(f"{PROJECT_VARIABLE} is not set", "Set it in .env (`tg whoami` prints the project).")
        async with sdk.AsyncTogether(api_key=key, project_id=project, max_retries=0) as client:
            yield client


_AFTER_FAILURE = "Its rank, targets or base do not suit, or there is no capacity: undeploy it, and see docs/deploy.md."
_REMEDIES = {
    402: "Add credit to the account; the same command goes on where it was.",
    404: "Check TOGETHER_PROJECT_ID. Was something removed in the console? Then gavel undeploy, and deploy again.",
    409: "Something of this name is being removed; give the same command again in a minute.",
}
