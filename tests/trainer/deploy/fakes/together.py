"""Together's v2 interface on loopback: models, uploads in parts, endpoints, deployments, adapters, and their states."""

import hashlib
from typing import Any

from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import ScriptedHost

PROJECT, SLUG = "prj_1", "acme"
PART = 20 * 2**20
NOW = "2026-11-23T00:00:00Z"
BASE = "Qwen/Qwen3-8B"
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
        match call.method, call.path.removeprefix("/v2/").split("/"):
            case "GET", ["supported-models"]:
                return _page(self._catalogue(call.query.get("search", "")))
            case "GET", ["public", "inference-instance-types"]:
                return _page([_HARDWARE])
            case _, ["projects", project, *_] if project != PROJECT:
                return self.error(404, f"project {project} not found")
            case _, ["projects", _, "endpoints", endpoint, *_] if endpoint not in self.endpoints:
                return self.error(404, f"endpoint {endpoint} not found")
            case _, ["projects", _, _, _, _, deployment, *_] if deployment not in self.deployments:
                return self.error(404, f"deployment {deployment} not found")
            case method, ["projects", _, *rest]:
                return self._answer(method, rest, body)
            case _:
                return self.error(404, f"no route {call.method} {call.path}")

    def _answer(self, method: str, rest: list[str], body: Thing) -> Answer:
        match method, rest:
            case "GET", ["models"]:
                return _page(list(self.models.values()))
            case "POST", ["models"]:
                if body["type"] != "adapter" or body["baseModelId"] != "ml_base":
                    return self.error(400, "unknown base model")
                weights = {"type": "WEIGHTS_TYPE_ADAPTER"}
                return self._make("model", self.models, body["name"], baseModelId="ml_base", weights=weights)
            case "POST", ["models", "upload", "create"]:
                return Answer({"files": [self._plan(body["objectId"], file) for file in body["files"]]})
            case "POST", ["models", "upload", "complete"]:
                return self._complete(body)
            case "GET", ["models", model, "revisions"]:
                return _page(self.revisions.get(model, []))
            case "DELETE", ["models", model]:
                return self._delete(self.models, model)
            case "GET", ["endpoints"]:
                return _page(list(self.endpoints.values()))
            case "POST", ["endpoints"]:
                given = {"trafficSplit": [], "visibility": body["visibility"]}
                return self._make("endpoint", self.endpoints, body["name"], **given)
            case "PATCH", ["endpoints", endpoint]:
                self.endpoints[endpoint]["trafficSplit"] = body["trafficSplit"]
                return Answer(self.endpoints[endpoint])
            case "DELETE", ["endpoints", endpoint]:
                if any(each["endpointId"] == endpoint for each in self.deployments.values()):
                    return self.error(409, "endpoint has deployments")
                return self._delete(self.endpoints, endpoint)
            case "GET", ["endpoints", endpoint, _]:
                own = [each["id"] for each in self.deployments.values() if each["endpointId"] == endpoint]
                return _page([self._seen(each) for each in own])
            case "POST", ["endpoints", endpoint, _]:
                given = {name: body[name] for name in ("autoscaling", "config", "model", "inactiveTimeout")}
                given |= {"status": {"state": "DEPLOYMENT_STATE_PROVISIONING"}, "endpointId": endpoint}
                return self._make("deployment", self.deployments, body["name"], **given)
            case "PATCH", ["endpoints", _, _, deployment]:
                self.deployments[deployment]["autoscaling"] = body["autoscaling"]
                return Answer(self.deployments[deployment])
            case "DELETE", ["endpoints", endpoint, _, deployment]:
                replicas = self.deployments[deployment]["autoscaling"]["minReplicas"]
                if replicas or self.endpoints[endpoint]["trafficSplit"]:
                    return self.error(409, "deployment is running")
                self.adapters = {k: each for k, each in self.adapters.items() if each["deployment"] != deployment}
                return self._delete(self.deployments, deployment)
            case "GET", ["endpoints", _, _, deployment, _]:
                there = [each for each in self.adapters.values() if each["deployment"] == deployment]
                return _page(list(map(self._loaded, there)))
            case _:
                if any(each["adapterModelId"] == body["adapterModelId"] for each in self.adapters.values()):
                    return self.error(409, "adapter is attached already")
                row = {"id": f"dad_{len(self.made)}", "deployment": rest[3], "adapterModelId": body["adapterModelId"]}
                self.adapters[row["id"]] = row
                self.made.append("adapter")
                return Answer(self._loaded(row))

    def _make(self, kind: str, things: dict[str, Thing], name: str, **fields: Any) -> Answer:
        if any(each["name"].endswith(f"/{name}") for each in things.values()):
            return self.error(409, f"a {kind} of this name exists")
        number = f"{kind}_{len(self.made)}"
        things[number] = {"id": number, "name": f"{SLUG}/{name}", "createdAt": NOW, "projectId": PROJECT, **fields}
        self.made.append(kind)
        return Answer(things[number])

    def _delete(self, things: dict[str, Thing], name: str) -> Answer:
        return Answer({}) if things.pop(name, None) else self.error(404, f"{name} not found")

    def _catalogue(self, search: str) -> list[Thing]:
        mode = "ADAPTER_MODE_DISABLED" if self.without_adapters else "ADAPTER_MODE_DYNAMIC"
        profile = {"config": "projects/public/configs/cr_1", "model": "projects/public/models/ml_base"}
        profile |= {"profileId": "cr_1", "gpuCount": 1, "gpuType": "H100", "adapterMode": mode}
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

    def _loaded(self, row: Thing) -> Thing:
        state = self.load if self._looked.get(row["deployment"], 0) > self.looks else "LOADING"
        status = {"state": f"ADAPTER_LOAD_STATE_{state}", "clusterId": "c1"}
        if state == "FAILED":
            status["message"] = "target module embed_tokens is not supported"
        return {**row, "perCluster": [status]}


_HARDWARE = {"id": "h100-1x", "gpuCount": 1, "gpuType": "H100", "name": "1x H100", "priceCentsPerHour": 399}


def _page(rows: list[Thing]) -> Answer:
    return Answer({"object": "list", "data": rows, "next_cursor": None})
