"""Together's v2 interface on loopback: models, uploads in parts, endpoints, deployments, adapters, and their states.

Written from its published interface; the real SDK speaks to it. It fails as it is told to (`fail`), and counts what was
made, so that a test can say that nothing was made twice.
"""

import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.trainer.engines.vllm_launch import free_port

PROJECT, SLUG, KEY = "prj_1", "acme", "tg-secret-key-1234"
PART = 20 * 2**20
NOW = "2026-11-23T00:00:00Z"
BASE = "Qwen/Qwen3-8B"


@dataclass
class Fault:
    """Answers of one route, before (or after) it does its work."""

    status: int
    times: int
    retry_after: str = ""
    after: bool = False
    """The work is done, and the answer is lost."""


@dataclass
class FakeTogether:
    looks: int = 1
    """Times that a deployment is seen as provisioning, and its adapter as loading."""
    validation: str = "SUCCESS"
    load: str = "READY"
    end: str = "READY"
    """What the deployment's state becomes."""
    without_adapters: bool = False
    forget_etag: bool = False
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    revisions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By upload id: the file, its hash, and its parts."""
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    deployments: dict[str, dict[str, Any]] = field(default_factory=dict)
    adapters: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    """What was created, in order."""
    puts: list[str] = field(default_factory=list)
    """Parts that arrived."""
    calls: list[str] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    """By `METHOD path-end`, such as `POST /deployments`."""

    def __post_init__(self) -> None:
        self._looked: dict[str, int] = {}
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        methods = ["GET", "POST", "PATCH", "DELETE", "PUT"]
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)])
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def fail(self, route: str, status: int, times: int = 1, retry_after: str = "", after: bool = False) -> None:
        self.faults[route] = Fault(status, times, retry_after, after)

    def left(self) -> int:
        """Things that stand and cost, or take room."""
        return len(self.models) + len(self.endpoints) + len(self.deployments) + len(self.adapters)

    async def _answer(self, request: Request) -> Response:
        path, method = "/" + request.path_params["path"], request.method
        self.calls.append(f"{method} {path}")
        fault = next((f for at, f in self.faults.items() if f"{method} {path}".startswith(at.split(" ")[0])
                      and path.endswith(at.split(" ")[1]) and f.times > 0), None)  # fmt: skip
        if fault is not None:
            fault.times -= 1
            if fault.after:
                await self._route(request, method, path)
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            return JSONResponse({"error": {"message": f"injected {fault.status}"}}, fault.status, headers)
        return await self._route(request, method, path)

    async def _route(self, request: Request, method: str, path: str) -> Response:
        if path.startswith("/store/"):
            return self._put(path, await request.body())
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _error(401, "Invalid API key provided")
        body = json.loads(await request.body() or b"{}")
        match [method, *path.strip("/").split("/")]:
            case ["GET", "v2", "supported-models"]:
                return _page(self._catalogue(request.query_params.get("search", "")))
            case ["GET", "v2", "public", "inference-instance-types"]:
                return _page([_hardware()])
            case [_, "v2", "projects", project, *_] if project != PROJECT:
                return _error(404, f"project {project} not found")
            case ["GET", "v2", "projects", _, "models"]:
                return _page(list(self.models.values()))
            case ["POST", "v2", "projects", _, "models"]:
                return self._make_model(body)
            case ["POST", "v2", "projects", _, "models", "upload", "create"]:
                return self._create_upload(body)
            case ["POST", "v2", "projects", _, "models", "upload", "complete"]:
                return self._complete_upload(body)
            case ["GET", "v2", "projects", _, "models", model, "revisions"]:
                return _page(self.revisions.get(model, []))
            case ["DELETE", "v2", "projects", _, "models", model]:
                return _deleted(self.models, model)
            case ["GET", "v2", "projects", _, "endpoints"]:
                return _page([self._endpoint(each) for each in self.endpoints.values()])
            case ["POST", "v2", "projects", _, "endpoints"]:
                return self._make_endpoint(body)
            case ["PATCH", "v2", "projects", _, "endpoints", endpoint]:
                return self._route_endpoint(endpoint, body)
            case ["DELETE", "v2", "projects", _, "endpoints", endpoint]:
                if any(each["endpointId"] == endpoint for each in self.deployments.values()):
                    return _error(409, "endpoint has deployments")
                return _deleted(self.endpoints, endpoint)
            case [_, "v2", "projects", _, "endpoints", endpoint, *_] if endpoint not in self.endpoints:
                return _error(404, f"endpoint {endpoint} not found")
            case ["GET", "v2", "projects", _, "endpoints", endpoint, "deployments"]:
                return _page([each for each in self.deployments.values() if each["endpointId"] == endpoint])
            case ["POST", "v2", "projects", _, "endpoints", endpoint, "deployments"]:
                return self._make_deployment(endpoint, body)
            case [_, "v2", "projects", _, "endpoints", _, "deployments", deployment, *_] if (
                deployment not in self.deployments
            ):
                return _error(404, f"deployment {deployment} not found")
            case ["GET", "v2", "projects", _, "endpoints", _, "deployments", deployment]:
                return JSONResponse(self._seen(deployment))
            case ["PATCH", "v2", "projects", _, "endpoints", _, "deployments", deployment]:
                return self._scale(deployment, body)
            case ["DELETE", "v2", "projects", _, "endpoints", endpoint, "deployments", deployment]:
                return self._delete_deployment(endpoint, deployment)
            case ["GET", "v2", "projects", _, "endpoints", _, "deployments", deployment, "adapters"]:
                rows = [each for each in self.adapters.values() if each["deployment"] == deployment]
                return _page([self._loaded(each) for each in rows])
            case ["POST", "v2", "projects", _, "endpoints", _, "deployments", deployment, "adapters"]:
                return self._attach(deployment, body)
            case _:
                return _error(404, f"no route {method} {path}")

    def _catalogue(self, search: str) -> list[dict[str, Any]]:
        mode = "ADAPTER_MODE_DISABLED" if self.without_adapters else "ADAPTER_MODE_DYNAMIC"
        profile = {
            "profileId": "cr_1", "config": "projects/public/configs/cr_1", "model": "projects/public/models/ml_base",
            "modelName": BASE, "gpuCount": 1, "gpuType": "H100", "parallelism": "TP1", "quantization": "",
            "certifiedConfigRevisionId": "cr_1", "certifiedModelRevisionId": "rev_0", "adapterMode": mode,
            "performanceBenchmarks": {},
        }  # fmt: skip
        model = {
            "id": "ml_base", "name": BASE, "baseModel": "projects/public/models/ml_base", "baseModelId": "ml_base",
            "capabilities": ["CAPABILITY_CHAT"], "createdAt": NOW, "updatedAt": NOW, "displayName": "Qwen3 8B",
            "displayType": "chat", "inputModalities": [], "outputModalities": [], "products": ["PRODUCT_DEDICATED"],
            "publisher": "Qwen", "status": "SUPPORTED_MODEL_STATUS_SUPPORTED", "deploymentProfiles": [profile],
        }  # fmt: skip
        return [model] if search.lower() in BASE.lower() else []

    def _make_model(self, body: dict[str, Any]) -> Response:
        name = f"{SLUG}/{body['name']}"
        if any(each["name"] == name for each in self.models.values()):
            return _error(409, "a model of this name exists")
        if body["type"] != "adapter" or body["baseModelId"] != "ml_base":
            return _error(400, "unknown base model")
        model = {
            "id": f"ml_{len(self.made)}", "name": name, "organizationId": "org", "projectId": PROJECT,
            "visibility": "VISIBILITY_PRIVATE", "weights": {"type": "WEIGHTS_TYPE_ADAPTER"}, "baseModelId": "ml_base",
        }  # fmt: skip
        self.models[model["id"]] = model
        self.made.append("model")
        return JSONResponse(model)

    def _create_upload(self, body: dict[str, Any]) -> Response:
        if body["objectId"] not in self.models:
            return _error(404, "no such object")
        files = []
        for file in body["files"]:
            upload = f"up_{body['objectId']}_{file['path']}_{file['hash']}"
            self.uploads.setdefault(upload, {**file, "parts": {}})
            parts = [
                {
                    "partNumber": n,
                    "url": f"{self.url}/store/{upload}/{n}?X-Signature=hidden",
                    "headers": {"X-Part": str(n)},
                }
                for n in range(1, file["numParts"] + 1)
            ]
            files.append({"path": file["path"], "uploadId": upload, "parts": parts})
        return JSONResponse({"files": files})

    def _put(self, path: str, content: bytes) -> Response:
        _, _, upload, number = path.split("/")
        if len(content) > PART:
            return _error(400, "EntityTooLarge")
        digest = hashlib.md5(content).digest()
        self.uploads[upload]["parts"][int(number)] = digest
        self.puts.append(f"{upload}/{number}")
        return Response(headers={} if self.forget_etag else {"ETag": f'"{digest.hex()}"'})

    def _complete_upload(self, body: dict[str, Any]) -> Response:
        for file in body["files"]:
            details = file["uploadDetails"]
            upload = self.uploads[details["uploadId"]]
            digests = [upload["parts"].get(part["partNumber"]) for part in details["parts"]]
            told = [part["hash"] for part in details["parts"]]
            if len(digests) != upload["numParts"] or told != [d.hex() if d else None for d in digests]:
                return _error(400, "InvalidPart")
            whole = (
                digests[0].hex()
                if len(digests) == 1
                else f"{hashlib.md5(b''.join(digests)).hexdigest()}-{len(digests)}"
            )
            if whole != upload["hash"]:
                return _error(400, "hash mismatch")
        revision = {"revisionId": f"rev_{len(self.made)}", "createdAt": NOW}
        revision["validationStatus"] = f"REVISION_VALIDATION_STATUS_{self.validation}"
        if self.validation == "FAILED":
            revision["validationErrors"] = [{"message": "LoRA rank 256 exceeds the maximum of 64", "rule": "rank"}]  # type: ignore[assignment]
        self.revisions.setdefault(body["objectId"], []).append(revision)
        self.made.append("revision")
        return JSONResponse({"revisionId": revision["revisionId"]})

    def _make_endpoint(self, body: dict[str, Any]) -> Response:
        name = f"{SLUG}/{body['name']}"
        if any(each["name"] == name for each in self.endpoints.values()):
            return _error(409, "an endpoint of this name exists")
        endpoint = {"id": f"ep_{len(self.made)}", "name": name, "trafficSplit": [], "visibility": body["visibility"]}
        self.endpoints[endpoint["id"]] = endpoint
        self.made.append("endpoint")
        return JSONResponse(self._endpoint(endpoint))

    def _endpoint(self, endpoint: dict[str, Any]) -> dict[str, Any]:
        fixed = {"createdAt": NOW, "updatedAt": NOW, "deployments": [], "etag": "e", "projectId": PROJECT}
        return {**fixed, "endpointType": "ENDPOINT_TYPE_DEDICATED", **endpoint}

    def _route_endpoint(self, endpoint: str, body: dict[str, Any]) -> Response:
        if endpoint not in self.endpoints:
            return _error(404, "no such endpoint")
        self.endpoints[endpoint]["trafficSplit"] = body["trafficSplit"]
        return JSONResponse(self._endpoint(self.endpoints[endpoint]))

    def _make_deployment(self, endpoint: str, body: dict[str, Any]) -> Response:
        deployment = {
            "id": f"dep_{len(self.made)}", "name": f"{self.endpoints[endpoint]['name']}/{body['name']}",
            "endpointId": endpoint, "projectId": PROJECT, "autoscaling": body["autoscaling"], "config": body["config"],
            "configId": "cr_1", "model": body["model"], "modelId": "ml_base", "modelRevisionId": "rev_0", "etag": "e",
            "createdAt": NOW, "updatedAt": NOW, "hardware": "1xH100", "trafficMode": "TRAFFIC_MODE_LIVE",
            "inactiveTimeout": body.get("inactiveTimeout", 0),
            "status": {"state": "DEPLOYMENT_STATE_PROVISIONING", "message": "scheduling"},
        }  # fmt: skip
        self.deployments[deployment["id"]] = deployment
        self.made.append("deployment")
        return JSONResponse(deployment)

    def _seen(self, deployment: str) -> dict[str, Any]:
        found = self.deployments[deployment]
        self._looked[deployment] = self._looked.get(deployment, 0) + 1
        if self._looked[deployment] > self.looks and found["autoscaling"]["minReplicas"]:
            found["status"] = {"state": f"DEPLOYMENT_STATE_{self.end}", "message": "no capacity in any region"}
        return found

    def _scale(self, deployment: str, body: dict[str, Any]) -> Response:
        self.deployments[deployment]["autoscaling"] = body["autoscaling"]
        return JSONResponse(self.deployments[deployment])

    def _delete_deployment(self, endpoint: str, deployment: str) -> Response:
        if self.deployments[deployment]["autoscaling"]["minReplicas"]:
            return _error(409, "deployment is running")
        if self.endpoints[endpoint]["trafficSplit"]:
            return _error(409, "deployment receives traffic")
        for name in [name for name, each in self.adapters.items() if each["deployment"] == deployment]:
            del self.adapters[name]
        return _deleted(self.deployments, deployment)

    def _attach(self, deployment: str, body: dict[str, Any]) -> Response:
        if any(each["adapterModelId"] == body["adapterModelId"] for each in self.adapters.values()):
            return _error(409, "adapter is attached already")
        row = {"id": f"dad_{len(self.made)}", "deployment": deployment, "adapterModelId": body["adapterModelId"]}
        row |= {"desiredRevisionId": body["adapterRevisionId"], "etag": "e"}
        self.adapters[row["id"]] = row
        self.made.append("adapter")
        return JSONResponse(self._loaded(row))

    def _loaded(self, row: dict[str, Any]) -> dict[str, Any]:
        looked = self._looked.get(row["deployment"], 0)
        state = self.load if looked > self.looks else "LOADING"
        status = {"adapterModelId": row["adapterModelId"], "clusterId": "c1", "failedPodCount": 0, "readyPodCount": 1}
        status |= {"state": f"ADAPTER_LOAD_STATE_{state}", "totalPodCount": 1}
        if state == "FAILED":
            status["message"] = "target module embed_tokens is not supported"
        return {**row, "perCluster": [status]}


def _hardware() -> dict[str, Any]:
    hardware = {"id": "h100-1x", "description": "one H100", "gpuCount": 1, "gpuMemoryGib": 80, "gpuType": "H100"}
    return {**hardware, "name": "1x H100", "priceCentsPerHour": 399, "regions": []}


def _page(rows: list[dict[str, Any]]) -> Response:
    return JSONResponse({"object": "list", "data": rows, "next_cursor": None})


def _deleted(things: dict[str, dict[str, Any]], name: str) -> Response:
    if name not in things:
        return _error(404, f"{name} not found")
    del things[name]
    return JSONResponse({})


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status)
