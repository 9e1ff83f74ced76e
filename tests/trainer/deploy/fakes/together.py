"""Together's v2 interface on loopback: models, uploads in parts, endpoints, deployments, adapters, and their states."""

import hashlib
from typing import Any

from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import ScriptedHost

PROJECT, SLUG = "prj_1", "acme"
PART = 20 * 2**20
NOW = "2026-11-23T00:00:00Z"
BASE = "Qwen/Qwen3-8B"
_TIMES = {"createdAt": NOW, "updatedAt": NOW, "etag": "e", "projectId": PROJECT}
Thing = dict[str, Any]


class FakeTogether(ScriptedHost):
    def __init__(self, looks: int = 1) -> None:
        super().__init__()
        self.looks = looks
        """Times that a deployment is seen as provisioning, and its adapter as loading."""
        self.validation, self.load, self.end = "SUCCESS", "READY", "READY"
        """States that an upload, an adapter and a deployment come to."""
        self.without_adapters = False
        self.models: dict[str, Thing] = {}
        self.revisions: dict[str, list[Thing]] = {}
        self.uploads: dict[str, Thing] = {}
        self.endpoints: dict[str, Thing] = {}
        self.deployments: dict[str, Thing] = {}
        self.adapters: dict[str, Thing] = {}
        self._looked: dict[str, int] = {}

    def left(self) -> int:
        return len(self.models) + len(self.endpoints) + len(self.deployments) + len(self.adapters)

    def answer(self, call: Call) -> Answer:
        if call.path.startswith("/store/"):
            return self._put(call.path, call.body)
        if not self.is_authorized(call):
            return self.refuse(call)
        body: Any = call.json if call.body else {}
        match [call.method, *call.path.removeprefix("/v2/").split("/")]:
            case ["GET", "supported-models"]:
                return _page(self._catalogue(call.query.get("search", "")))
            case ["GET", "public", "inference-instance-types"]:
                return _page([_HARDWARE])
            case [_, "projects", project, *_] if project != PROJECT:
                return self.error(404, f"project {project} not found")
            case [method, "projects", _, "models", *rest]:
                return self._answer_models(method, rest, body)
            case [method, "projects", _, "endpoints", *rest]:
                return self._answer_endpoints(method, rest, body)
            case _:
                return self.error(404, f"no route {call.method} {call.path}")

    def _answer_models(self, method: str, rest: list[str], body: Thing) -> Answer:
        match method, rest:
            case "GET", []:
                return _page(list(self.models.values()))
            case "POST", []:
                if body["type"] != "adapter" or body["baseModelId"] != "ml_base":
                    return self.error(400, "unknown base model")
                fixed = {"organizationId": "org", "visibility": "VISIBILITY_PRIVATE", "baseModelId": "ml_base"}
                return self._make("model", self.models, body["name"], **fixed, weights={"type": "WEIGHTS_TYPE_ADAPTER"})
            case "POST", ["upload", "create"]:
                return Answer({"files": [self._plan(body["objectId"], file) for file in body["files"]]})
            case "POST", ["upload", "complete"]:
                return self._complete(body)
            case "GET", [model, "revisions"]:
                return _page(self.revisions.get(model, []))
            case _:
                return self._delete(self.models, rest[0])

    def _answer_endpoints(self, method: str, rest: list[str], body: Thing) -> Answer:
        if rest and rest[0] not in self.endpoints:
            return self.error(404, f"endpoint {rest[0]} not found")
        if len(rest) > 2 and rest[2] not in self.deployments:
            return self.error(404, f"deployment {rest[2]} not found")
        match method, rest:
            case "GET", []:
                return _page(list(self.endpoints.values()))
            case "POST", []:
                fixed = {"deployments": [], "endpointType": "ENDPOINT_TYPE_DEDICATED", "trafficSplit": []}
                return self._make("endpoint", self.endpoints, body["name"], **fixed, visibility=body["visibility"])
            case "PATCH", [endpoint]:
                self.endpoints[endpoint]["trafficSplit"] = body["trafficSplit"]
                return Answer(self.endpoints[endpoint])
            case "DELETE", [endpoint]:
                if any(each["endpointId"] == endpoint for each in self.deployments.values()):
                    return self.error(409, "endpoint has deployments")
                return self._delete(self.endpoints, endpoint)
            case "GET", [endpoint, _]:
                return _page(
                    [self._seen(each["id"]) for each in self.deployments.values() if each["endpointId"] == endpoint]
                )
            case "POST", [endpoint, _]:
                given = {name: body[name] for name in ("autoscaling", "config", "model", "inactiveTimeout")}
                fixed = {"configId": "cr_1", "modelId": "ml_base", "modelRevisionId": "rev_0", "hardware": "1xH100"}
                state = {"state": "DEPLOYMENT_STATE_PROVISIONING", "message": "scheduling"}
                fixed |= {"endpointId": endpoint, "trafficMode": "TRAFFIC_MODE_LIVE"}
                return self._make("deployment", self.deployments, body["name"], **given, **fixed, status=state)
            case "PATCH", [_, _, deployment]:
                self.deployments[deployment]["autoscaling"] = body["autoscaling"]
                return Answer(self.deployments[deployment])
            case "DELETE", [endpoint, _, deployment]:
                replicas = self.deployments[deployment]["autoscaling"]["minReplicas"]
                if replicas or self.endpoints[endpoint]["trafficSplit"]:
                    return self.error(409, "deployment is running")
                self.adapters = {k: each for k, each in self.adapters.items() if each["deployment"] != deployment}
                return self._delete(self.deployments, deployment)
            case "GET", [_, _, deployment, _]:
                there = [each for each in self.adapters.values() if each["deployment"] == deployment]
                return _page(list(map(self._loaded, there)))
            case _:
                return self._attach(rest[2], body)

    def _make(self, kind: str, things: dict[str, Thing], name: str, **fields: Any) -> Answer:
        if any(each["name"].endswith(f"/{name}") for each in things.values()):
            return self.error(409, f"a {kind} of this name exists")
        number = f"{kind}_{len(self.made)}"
        things[number] = {"id": number, "name": f"{SLUG}/{name}", **_TIMES, **fields}
        self.made.append(kind)
        return Answer(things[number])

    def _delete(self, things: dict[str, Thing], name: str) -> Answer:
        return Answer({}) if things.pop(name, None) else self.error(404, f"{name} not found")

    def _catalogue(self, search: str) -> list[Thing]:
        mode = "ADAPTER_MODE_DISABLED" if self.without_adapters else "ADAPTER_MODE_DYNAMIC"
        profile = {
            "profileId": "cr_1", "config": "projects/public/configs/cr_1", "model": "projects/public/models/ml_base",
            "modelName": BASE, "gpuCount": 1, "gpuType": "H100", "adapterMode": mode,
        }  # fmt: skip
        model = {"id": "ml_base", "name": BASE, "baseModelId": "ml_base", "deploymentProfiles": [profile]}
        return [model] if search.lower() in BASE.lower() else []

    def _plan(self, model: str, file: Thing) -> Thing:
        """The same model and hash are the same upload."""
        upload = f"up_{model}_{file['path']}_{file['hash']}"
        self.uploads.setdefault(upload, {**file, "parts": {}})
        url, numbers = f"{self.url}/store/{upload}/%d?X-Amz-Signature=hidden", range(1, file["numParts"] + 1)
        parts = [{"partNumber": n, "url": url % n, "headers": {"X-Part": "x"}} for n in numbers]
        return {"path": file["path"], "uploadId": upload, "parts": parts}

    def _put(self, path: str, content: bytes) -> Answer:
        _, _, upload, number = path.split("/")
        if len(content) > PART:
            return self.error(400, "EntityTooLarge")
        digest = hashlib.md5(content).digest()
        self.uploads[upload]["parts"][int(number)] = digest
        return Answer(b"", 200, {"ETag": f'"{digest.hex()}"'})

    def _complete(self, body: Thing) -> Answer:
        for file in body["files"]:
            upload = self.uploads[file["uploadDetails"]["uploadId"]]
            md5s = [upload["parts"].get(part["partNumber"]) for part in file["uploadDetails"]["parts"]]
            told = [part["hash"] for part in file["uploadDetails"]["parts"]]
            if len(md5s) != upload["numParts"] or told != [md5.hex() if md5 else None for md5 in md5s]:
                return self.error(400, "InvalidPart")
            whole = md5s[0].hex() if len(md5s) == 1 else f"{hashlib.md5(b''.join(md5s)).hexdigest()}-{len(md5s)}"
            if whole != upload["hash"]:
                return self.error(400, "hash mismatch")
        revision: Thing = {"revisionId": f"rev_{len(self.made)}", "createdAt": NOW}
        revision["validationStatus"] = f"REVISION_VALIDATION_STATUS_{self.validation}"
        if self.validation == "FAILED":
            revision["validationErrors"] = [{"message": "LoRA rank 256 exceeds the maximum of 64", "rule": "rank"}]
        self.revisions.setdefault(body["objectId"], []).append(revision)
        self.made.append("revision")
        return Answer({"revisionId": revision["revisionId"]})

    def _seen(self, deployment: str) -> Thing:
        found = self.deployments[deployment]
        self._looked[deployment] = self._looked.get(deployment, 0) + 1
        if self._looked[deployment] > self.looks and found["autoscaling"]["minReplicas"]:
            found["status"] = {"state": f"DEPLOYMENT_STATE_{self.end}", "message": "no capacity in any region"}
        return found

    def _attach(self, deployment: str, body: Thing) -> Answer:
        if any(each["adapterModelId"] == body["adapterModelId"] for each in self.adapters.values()):
            return self.error(409, "adapter is attached already")
        row = {"id": f"dad_{len(self.made)}", "deployment": deployment, "adapterModelId": body["adapterModelId"]}
        row |= {"desiredRevisionId": body["adapterRevisionId"], "etag": "e"}
        self.adapters[row["id"]] = row
        self.made.append("adapter")
        return Answer(self._loaded(row))

    def _loaded(self, row: Thing) -> Thing:
        state = self.load if self._looked.get(row["deployment"], 0) > self.looks else "LOADING"
        status = {"adapterModelId": row["adapterModelId"], "clusterId": "c1", "failedPodCount": 0, "readyPodCount": 1}
        status |= {"state": f"ADAPTER_LOAD_STATE_{state}", "totalPodCount": 1}
        if state == "FAILED":
            status["message"] = "target module embed_tokens is not supported"
        return {**row, "perCluster": [status]}


_HARDWARE = {
    "id": "h100-1x", "description": "one H100", "gpuCount": 1, "gpuMemoryGib": 80, "gpuType": "H100",
    "name": "1x H100", "priceCentsPerHour": 399, "regions": [],
}  # fmt: skip


def _page(rows: list[Thing]) -> Answer:
    return Answer({"object": "list", "data": rows, "next_cursor": None})
