"""Together, by its v2 interface: an adapter on a dedicated deployment of its base model.

    model -> upload -> endpoint -> deployment -> attachment -> traffic -> serving

Every thing has the record's deterministic name and is looked up by it before it is created. Needs TOGETHER_API_KEY and
TOGETHER_PROJECT_ID. The deployment stops by itself after `inactive_minutes` without a request.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx

from gavel.trainer.deploy.host import (
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
)
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

KEY_VARIABLE, PROJECT_VARIABLE = "TOGETHER_API_KEY", "TOGETHER_PROJECT_ID"
PART = 20 * 2**20
"""Bytes of a file that are uploaded by one request."""
_PART_SECONDS = 600.0
_MODES = ("ADAPTER_MODE_DYNAMIC", "ADAPTER_MODE_FIXED")
"""Deployments that load adapters, the preferred one first."""
_INACTIVE = range(30, 1441)
_EXPIRED = {403: "The signed address has expired; the same command asks for another."}
_DOES_NOT_SUIT = "Its rank, targets or base do not suit, or there is no capacity: undeploy it, and see docs/deploy.md."

_LISTING = "together: what is there cannot be listed"
Listing = Callable[[], AsyncIterator[Any]]


class TogetherHost:
    """Drives the `together` package, but for the parts of a file, which its client does not upload."""

    name = "together"
    place = ""
    remedies: Mapping[int, str] = {
        404: "Check TOGETHER_PROJECT_ID. Was something removed in the console? Then gavel undeploy, and deploy again.",
        409: "Something of this name is being removed; give the same command again in a minute.",
    }

    def __init__(self, place: str, *, inactive_minutes: int = 30) -> None:
        """`inactive_minutes` (30 to 1440): a deployment without requests stops after it. Raises `DeployError`."""
        if place:
            raise DeployError(f"together takes no address ({place!r})", "Write: together")
        if inactive_minutes not in _INACTIVE:
            raise DeployError(f"inactive_minutes={inactive_minutes} is not taken", "Together takes 30 to 1440.")
        self._inactive_minutes = inactive_minutes

    def check(self, adapter: AdapterFacts) -> list[str]:
        # its own validation has the last word on the rank
        found = find_misfits("Together", adapter, ranks=range(1, 10**6), targets=PLAIN_TARGETS, takes=("rslora",))
        if adapter.base_is_local:
            found.append(
                f"its base {adapter.base_model} is only on this machine; Together serves models of its catalogue, such "
                "as Qwen/Qwen3-8B. A vLLM of your own serves any base: gavel deploy RUN vllm:http://HOST:PORT"
            )
        return found

    async def deploy(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Deployment:
        name = record.remote_name
        async with self._client() as client:
            api = client.endpoints

            async def once(stage: str, listing: Listing, create: Callable[[], Awaitable[Any]]) -> Any:
                what = f"together: the {stage} cannot be made"
                return await make_once(record, what, partial(_named, listing, name), create)

            base_id, profile = await _find_profile(client, adapter)
            description = "LoRA trained with Gavel"
            create = partial(client.models.create, base_model_id=base_id, description=description, type="adapter")
            model = await once("model", client.models.list, partial(create, name=name))
            revision = await _upload_adapter(client, record, adapter, model.id, report)
            create = partial(api.create, name=name, visibility="VISIBILITY_PRIVATE")
            endpoint = await once("endpoint", _endpoints(client, name), create)
            record.price = price = await _price(client, profile)
            report(f"together: {price}; it stops after {self._inactive_minutes} idle minutes")
            create = partial(
                api.deployments.create,
                endpoint.id,
                name=name,
                model=profile.model,
                config=profile.config,
                autoscaling={"min_replicas": 1, "max_replicas": 1},
                inactive_timeout=self._inactive_minutes,
            )
            deployment = await once("deployment", partial(api.deployments.list, endpoint.id), create)
            where = {"endpoint_id": endpoint.id, "deployment_id": deployment.id}
            attached = partial(_attached, api, where, model.id)
            attach = partial(api.adapters.create, adapter_model_id=model.id, adapter_revision_id=revision, **where)
            await make_once(record, "together: the adapter cannot be attached", attached, attach)
            split = [{"deployment_id": deployment.id, "weight": 1.0}]
            route = partial(api.update, endpoint.id, traffic_split=split, update_mask="trafficSplit")
            await ask("together: the endpoint cannot be routed", route)
            await poll_until(partial(_check_ready, api, endpoint.id, deployment.id, attached), "together", report)
            base_url = f"{str(client.base_url).rstrip('/')}/v1"
        return Deployment(self, record, base_url, f"{endpoint.name}:{model.name}", KEY_VARIABLE)

    async def status(self, record: DeploymentRecord) -> str:
        async with self._client() as client:
            endpoint, deployment = await _standing(client, record.remote_name)
            if not deployment:
                return "not there"
            look = partial(client.endpoints.deployments.retrieve, deployment.id, endpoint_id=endpoint.id)
            return _state(await ask("together: the deployment cannot be read", look))

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        async with self._client() as client:
            api = client.endpoints
            endpoint, deployment = await _standing(client, record.remote_name)
            if endpoint:
                unroute = partial(api.update, endpoint.id, traffic_split=[], update_mask="trafficSplit")
                await remove("Together's traffic", unroute, report)
            if deployment:
                await remove("Together's replica", _scaled(api, endpoint.id, deployment.id, 0), report)
                end = partial(api.deployments.delete, deployment.id, endpoint_id=endpoint.id)
                await remove("Together's deployment", end, report)
            if endpoint:
                await remove("Together's endpoint", partial(api.delete, endpoint.id), report)
            model = await ask(_LISTING, partial(_named, client.models.list, record.remote_name))
            if model is not None:
                await remove("Together's uploaded adapter", partial(client.models.delete, model.id), report)

    def costs(self, record: DeploymentRecord) -> str:
        price = record.price or "its GPUs are billed by the minute while it runs"
        return (
            f"Together: {price}; it stops by itself after {self._inactive_minutes} minutes without a request. "
            f"To stop it now and remove everything: gavel undeploy {record.id}"
        )

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Any]:
        package, key = sdk("together"), key_of(KEY_VARIABLE)
        project = key_of(PROJECT_VARIABLE, "Set it in .env (`tg whoami` prints the project).")
        async with package.AsyncTogether(api_key=key, project_id=project, max_retries=0) as client:
            yield client


open_host = TogetherHost


def _state(deployment: Any) -> str:
    return str(deployment.status.state).removeprefix("DEPLOYMENT_STATE_").lower()


def _scaled(api: Any, endpoint: str, deployment: str, replicas: int) -> Callable[[], Awaitable[Any]]:
    """The request that sets the number of replicas."""
    size = {"min_replicas": replicas, "max_replicas": replicas}
    return partial(
        api.deployments.update, deployment, endpoint_id=endpoint, autoscaling=size, update_mask="autoscaling"
    )


async def _attached(api: Any, where: Mapping[str, str], model: str) -> Any:
    """The deployment's attachment of the adapter, or None."""
    listed = await api.adapters.list(**where)
    return next((each for each in listed.data or () if each.adapter_model_id == model), None)


async def _check_ready(
    api: Any, endpoint: str, deployment: str, attached: Callable[[], Awaitable[Any]]
) -> tuple[bool | None, str]:
    """Whether the deployment and its adapter are ready; one that has stopped is started again."""
    look = partial(api.deployments.retrieve, deployment, endpoint_id=endpoint)
    found = await ask("together: the deployment cannot be read", look)
    state = _state(found)
    if state == "failed":
        raise DeployError(f"together: the deployment failed: {found.status.message}", _DOES_NOT_SUIT)
    if state in ("stopped", "stopping"):
        await ask("together: the deployment cannot be started again", _scaled(api, endpoint, deployment, 1))
    adapter = await ask("together: the adapters cannot be listed", attached)
    rows: list[Any] = list((adapter and adapter.per_cluster) or ())
    for row in rows:
        if row.state == "ADAPTER_LOAD_STATE_FAILED" or row.adapter_valid is False:
            why = row.adapter_valid_reason or row.message or row.reason or "no reason was given"
            raise DeployError(f"together: the adapter does not load: {why}", _DOES_NOT_SUIT)
    states = {str(row.state).removeprefix("ADAPTER_LOAD_STATE_").lower() for row in rows}
    is_done = state in ("ready", "scaling") and states == {"ready"}
    return (True if is_done else None), f"{state}, adapter {', '.join(sorted(states)) or 'pending'}"


async def _find_profile(client: Any, adapter: AdapterFacts) -> tuple[str, Any]:
    """The id of the base in the catalogue, and its smallest profile that loads adapters."""
    search = adapter.base_model.rpartition("/")[2]

    async def listed() -> list[Any]:
        return [each async for each in client.models.list_supported(search=search, product="PRODUCT_DEDICATED")]

    known = await ask("together: the catalogue cannot be read", listed)
    base = next((each for each in known if str(each.name).lower() == adapter.base_model.lower()), None)
    if base is None:
        near = (
            f"It has {', '.join(str(each.name) for each in known[:5])}." if known else "See `tg models list-supported`."
        )
        raise DeployError(f"Together's catalogue has no {adapter.base_model} for dedicated inference", near)
    profiles = [each for each in base.deployment_profiles or () if each.adapter_mode in _MODES]
    if not profiles:
        raise DeployError(
            f"Together serves {adapter.base_model} without adapters",
            "Train another base, or deploy elsewhere: gavel deploy RUN vllm:http://HOST:PORT",
        )
    profile = min(profiles, key=lambda each: (_MODES.index(each.adapter_mode), each.gpu_count))
    return base.base_model_id or base.id, profile


async def _price(client: Any, profile: Any) -> str:
    hardware = f"{profile.gpu_count} × {profile.gpu_type}"
    listed = await ask("together: the prices cannot be read", client.endpoints.hardware.list)
    for each in listed.data or ():
        if profile.gpu_type in (each.gpu_type, each.id) and each.gpu_count == profile.gpu_count:
            return f"{hardware}, {each.price_cents_per_hour / 100:.2f} USD an hour while it runs"
    return f"{hardware}, whose price per hour is not known here (see Together's console)"


async def _named(listing: Listing, name: str) -> Any:
    """The thing whose name ends so, in all pages of a listing, or None."""
    async for each in listing():
        if str(each.name).rpartition("/")[2] == name:
            return each
    return None


def _endpoints(client: Any, name: str) -> Listing:
    return partial(client.endpoints.list, filter=f'name="{name}"')


async def _standing(client: Any, name: str) -> tuple[Any, Any]:
    """The endpoint and the deployment of this name; None where they are not there."""
    endpoint = await ask(_LISTING, partial(_named, _endpoints(client, name), name))
    if endpoint is None:
        return None, None
    return endpoint, await ask(_LISTING, partial(_named, partial(client.endpoints.deployments.list, endpoint.id), name))


async def _upload_adapter(
    client: Any, record: DeploymentRecord, adapter: AdapterFacts, model: str, report: Report
) -> str:
    """The revision of the model that holds the adapter, once Together has validated it."""

    async def newest() -> Any:
        rows = (await client.models.list_revisions(model)).data or ()
        return max(rows, key=lambda row: row.created_at, default=None)

    async def find() -> str | None:
        found = await newest()
        return found and found.revision_id

    async def send() -> str:
        report(f"together: uploading {adapter.size / 1e6:,.0f} MB as {record.remote_name}")
        return await _upload(client, adapter.files(), model, find)

    async def validity() -> tuple[bool | None, str]:
        found = await ask("together: the upload cannot be read", newest)
        state = str((found and found.validation_status) or "")
        if state.endswith(("_FAILED", "_ERROR")):
            said = "; ".join(str(each.message or each.rule) for each in found.validation_errors or ())
            raise DeployError(
                f"together refuses the uploaded adapter: {said or state}",
                "Remove it (gavel undeploy), and deploy an adapter that fits: see docs/deploy.md.",
            )
        return (None if state.endswith("_PENDING") else True), state

    what = "together: the adapter cannot be uploaded"
    revision = await make_once(record, what, find, send)
    await poll_until(validity, "the validation of the adapter", report)
    return revision


async def _upload(client: Any, files: list[Path], model: str, find: Callable[[], Awaitable[str | None]]) -> str:
    """Sends the files in parts of 20 MiB, as the package's own command does, which its client has no call for."""

    async def post(call: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        path = f"/v2/projects/{client.project_id}/models/upload/{call}"
        return cast("dict[str, Any]", await client.post(path, cast_to=object, body={"objectId": model, "files": rows}))

    rows = [await asyncio.to_thread(_hashed, file) for file in files]
    what = "together: the upload cannot be created"
    planned = await ask(what, lambda: post("create", rows))  # the same hashes give the same upload
    sent: list[dict[str, Any]] = []
    for remote in planned["files"]:
        (file,) = (each for each in files if each.name == remote["path"])
        (row,) = ({"path": each["path"], "hash": each["hash"]} for each in rows if each["path"] == file.name)
        if remote.get("skipUpload"):
            sent.append({**row, "skipUpload": True})
        else:
            parts = await _put_parts(file, remote["parts"])
            sent.append({**row, "uploadDetails": {"uploadId": remote.get("uploadId", ""), "parts": parts}})

    async def complete() -> str:
        return (await post("complete", sent))["revisionId"]

    what = "together: the upload cannot be completed"
    return await ask(what, complete, creates=True, find=find)


async def _put_parts(file: Path, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Puts the parts one after another; gives their numbers and the hashes that the store has for them."""
    sent: list[dict[str, Any]] = []
    with file.open("rb") as stream:
        async with httpx.AsyncClient(timeout=_PART_SECONDS) as http:
            for part in sorted(parts, key=lambda part: int(part["partNumber"])):
                put = partial(http.put, part["url"], content=stream.read(PART), headers=part.get("headers") or {})

                async def once(put: Callable[[], Awaitable[httpx.Response]] = put) -> str:
                    return (await put()).raise_for_status().headers.get("etag", "").strip().strip('"')

                what = f"together: part {part['partNumber']} of {file.name} cannot be uploaded"
                sent.append({"partNumber": part["partNumber"], "hash": await ask(what, once, remedies=_EXPIRED)})
    return sent


def _hashed(file: Path) -> dict[str, Any]:
    """Together's content id of a file: the MD5 of its one part, or that of the parts' MD5s followed by their number."""
    with file.open("rb") as stream:
        md5s = [hashlib.md5(part, usedforsecurity=False).digest() for part in iter(lambda: stream.read(PART), b"")]
    joined = hashlib.md5(b"".join(md5s), usedforsecurity=False).hexdigest()
    whole = md5s[0].hex() if len(md5s) == 1 else f"{joined}-{len(md5s)}"
    return {"path": file.name, "hash": whole, "numParts": len(md5s)}
