"""Together, by its v2 interface: an adapter on a dedicated deployment of its base model.

    model -> revision -> endpoint -> deployment -> attachment -> traffic -> serving

Needs TOGETHER_API_KEY and TOGETHER_PROJECT_ID. The deployment stops by itself after `inactive_minutes` without a
request.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx

from gavel.trainer.deploy.host import (
    PLAIN_TARGETS,
    DeployHost,
    Plan,
    Report,
    Resource,
    ask,
    find_misfits,
    key_of,
    sdk,
)
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

_KEY = "TOGETHER_API_KEY"
PART = 20 * 2**20
"""Bytes of a file that are uploaded by one request."""
_PART_SECONDS = 600.0
_MODES = ("ADAPTER_MODE_DYNAMIC", "ADAPTER_MODE_FIXED")
"""Deployments that load adapters, the preferred one first."""
_INACTIVE = range(30, 1441)
_EXPIRED = {403: "The signed address has expired; the same command asks for another."}
_DOES_NOT_SUIT = "Its rank, targets or base do not suit, or there is no capacity: undeploy it, and see docs/deploy.md."


class TogetherHost:
    """Drives the `together` package, but for the parts of a file, which its client does not upload."""

    name, place = "together", ""
    key_variable: str | None = _KEY
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
        ranks = range(1, 10**6)
        return find_misfits("Together", adapter, ranks=ranks, targets=PLAIN_TARGETS, takes=("rslora",), own_base="")

    @asynccontextmanager
    async def plan(self, record: DeploymentRecord, report: Report) -> AsyncGenerator[Plan]:
        package, key, name = sdk("together"), key_of(_KEY), record.remote_name
        adapter = record.adapter
        project = key_of("TOGETHER_PROJECT_ID", "Set it in .env (`tg whoami` prints the project).")
        async with package.AsyncTogether(api_key=key, project_id=project, max_retries=0) as client:
            api = client.endpoints

            async def make_model() -> None:
                base_id, _ = await _find_profile(client, adapter)
                await client.models.create(
                    name=name, base_model_id=base_id, description="LoRA trained with Gavel", type="adapter"
                )

            async def find_revision() -> Any:
                if model.found is None:
                    return None
                rows = (await client.models.list_revisions(model.found.id)).data or ()
                return max(rows, key=lambda row: row.created_at, default=None)

            async def find_deployment() -> Any:
                return endpoint.found and await _named(api.deployments.list(endpoint.found.id), name)

            async def make_deployment() -> None:
                _, profile = await _find_profile(client, adapter)
                record.save(price=await _price(client, profile))
                report(self.costs(record))
                await api.deployments.create(
                    endpoint.found.id,
                    name=name,
                    model=profile.model,
                    config=profile.config,
                    autoscaling={"min_replicas": 1, "max_replicas": 1},
                    inactive_timeout=self._inactive_minutes,
                )

            async def scale(replicas: int) -> Any:
                size = {"min_replicas": replicas, "max_replicas": replicas}
                where = {"endpoint_id": endpoint.found.id, "update_mask": "autoscaling"}
                return await api.deployments.update(deployment.found.id, autoscaling=size, **where)

            async def remove_deployment() -> None:
                await scale(0)
                await api.deployments.delete(deployment.found.id, endpoint_id=endpoint.found.id)

            async def find_attached() -> Any:
                if deployment.found is None or model.found is None:
                    return None
                listed = await api.adapters.list(endpoint_id=endpoint.found.id, deployment_id=deployment.found.id)
                return next((each for each in listed.data or () if each.adapter_model_id == model.found.id), None)

            async def attach() -> None:
                where = {"endpoint_id": endpoint.found.id, "deployment_id": deployment.found.id}
                ids = {"adapter_model_id": model.found.id, "adapter_revision_id": revision.found.revision_id}
                await api.adapters.create(**ids, **where)

            async def find_endpoint() -> Any:
                return await _named(api.list(filter=f'name="{name}"'), name)

            async def find_routed() -> Any:
                found = await find_endpoint()
                return found if found and found.traffic_split else None

            async def route(*deployments: str) -> Any:
                split = [{"deployment_id": each, "weight": 1.0} for each in deployments]
                return await api.update(endpoint.found.id, traffic_split=split, update_mask="trafficSplit")

            async def find_running() -> Any:
                found = await find_deployment()
                return None if found is None or _state(found) in ("stopped", "stopping") else found

            model = Resource(
                f"the model {name}",
                find=lambda: _named(client.models.list(), name),
                make=make_model,
                remove=lambda: client.models.delete(model.found.id),
            )
            revision = Resource(
                f"the upload of {adapter.size / 1e6:.1f} MB",
                find=find_revision,
                make=lambda: _upload(self, client, adapter.files(), model.found.id),
                state=_validity,
            )
            endpoint = Resource(
                f"the endpoint {name}",
                find=find_endpoint,
                make=lambda: api.create(name=name, visibility="VISIBILITY_PRIVATE"),
                remove=lambda: api.delete(endpoint.found.id),
            )
            deployment = Resource(f"the deployment {name}", find_deployment, make_deployment, remove_deployment)
            attached = Resource("the attached adapter", find_attached, attach)
            routed = Resource("the traffic", find_routed, lambda: route(deployment.found.id), remove=route)
            running = Resource("the replica", find_running, lambda: scale(1), state=_replica_state)
            loaded = Resource("the loaded adapter", find_attached, attach, state=_adapter_state)
            yield Plan(
                [model, revision, endpoint, deployment, attached, routed, running, loaded],
                lambda: (f"{str(client.base_url).rstrip('/')}/v1", f"{endpoint.found.name}:{model.found.name}"),
            )

    def costs(self, record: DeploymentRecord) -> str:
        price = record.price or "its GPUs are billed by the minute while it runs"
        return f"Together: {price}; it stops by itself after {self._inactive_minutes} minutes without a request"


open_host = TogetherHost


async def _named(listing: AsyncIterable[Any], name: str) -> Any:
    """The thing whose name ends so, in all pages of a listing, or None."""
    async for each in listing:
        if str(each.name).rpartition("/")[2] == name:
            return each
    return None


def _state(deployment: Any) -> str:
    return str(deployment.status.state).removeprefix("DEPLOYMENT_STATE_").lower()


def _replica_state(deployment: Any) -> str:
    state = _state(deployment)
    if state == "failed":
        raise DeployError(f"together: the deployment failed: {deployment.status.message}", _DOES_NOT_SUIT)
    return "" if state in ("ready", "scaling") else state


def _adapter_state(attached: Any) -> str:
    rows: list[Any] = list(attached.per_cluster or ())
    for row in rows:
        if row.state == "ADAPTER_LOAD_STATE_FAILED" or row.adapter_valid is False:
            why = row.adapter_valid_reason or row.message or row.reason or "no reason was given"
            raise DeployError(f"together: the adapter does not load: {why}", _DOES_NOT_SUIT)
    states = {str(row.state).removeprefix("ADAPTER_LOAD_STATE_").lower() for row in rows}
    return "" if states == {"ready"} else ", ".join(sorted(states)) or "pending"


def _validity(revision: Any) -> str:
    state = str(revision.validation_status or "")
    if state.endswith(("_FAILED", "_ERROR")):
        said = "; ".join(str(each.message or each.rule) for each in revision.validation_errors or ())
        raise DeployError(
            f"together refuses the uploaded adapter: {said or state}",
            "Remove it (gavel undeploy), and deploy an adapter that fits: see docs/deploy.md.",
        )
    return "being validated" if state.endswith("_PENDING") else ""


async def _find_profile(client: Any, adapter: AdapterFacts) -> tuple[str, Any]:
    """The id of the base in the catalogue, and its smallest profile that loads adapters."""
    search = adapter.base_model.rpartition("/")[2]
    known = [each async for each in client.models.list_supported(search=search, product="PRODUCT_DEDICATED")]
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
    for each in (await client.endpoints.hardware.list()).data or ():
        if profile.gpu_type in (each.gpu_type, each.id) and each.gpu_count == profile.gpu_count:
            return f"{hardware}, {each.price_cents_per_hour / 100:.2f} USD an hour while it runs"
    return f"{hardware}, whose price per hour is not known here (see Together's console)"


async def _upload(host: DeployHost, client: Any, files: list[Path], model: str) -> None:
    """Sends the files in parts of 20 MiB, as the package's own command does, which its client has no call for."""

    async def post(call: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        path = f"/v2/projects/{client.project_id}/models/upload/{call}"
        return cast("dict[str, Any]", await client.post(path, cast_to=object, body={"objectId": model, "files": rows}))

    hashed = {file.name: (file, await asyncio.to_thread(_hash_parts, file)) for file in files}
    planned = await post("create", [row for _, row in hashed.values()])  # the same hashes give the same upload
    sent: list[dict[str, Any]] = []
    for remote in planned["files"]:
        file, row = hashed[remote["path"]]
        known = {"path": row["path"], "hash": row["hash"]}
        if remote.get("skipUpload"):
            sent.append({**known, "skipUpload": True})
        else:
            parts = await _put_parts(host, file, remote["parts"])
            sent.append({**known, "uploadDetails": {"uploadId": remote.get("uploadId", ""), "parts": parts}})
    await post("complete", sent)


async def _put_parts(host: DeployHost, file: Path, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Puts the parts one after another; gives their numbers and the hashes that the store has for them."""
    sent: list[dict[str, Any]] = []
    with file.open("rb") as stream:
        async with httpx.AsyncClient(timeout=_PART_SECONDS) as http:
            for part in sorted(parts, key=lambda part: int(part["partNumber"])):
                put = partial(http.put, part["url"], content=stream.read(PART), headers=part.get("headers") or {})

                async def put_once(put: Any = put) -> str:
                    return (await put()).raise_for_status().headers.get("etag", "").strip().strip('"')

                what = f"together: part {part['partNumber']} of {file.name} cannot be uploaded"
                sent.append({"partNumber": part["partNumber"], "hash": await ask(host, what, put_once, _EXPIRED)})
    return sent


def _hash_parts(file: Path) -> dict[str, Any]:
    """Together's content id of a file: the MD5 of its one part, or that of the parts' MD5s followed by their number."""
    with file.open("rb") as stream:
        md5s = [hashlib.md5(part, usedforsecurity=False).digest() for part in iter(lambda: stream.read(PART), b"")]
    joined = hashlib.md5(b"".join(md5s), usedforsecurity=False).hexdigest()
    whole = md5s[0].hex() if len(md5s) == 1 else f"{joined}-{len(md5s)}"
    return {"path": file.name, "hash": whole, "numParts": len(md5s)}
