"""Fireworks' control plane on loopback, as published: models, uploads, deployments, loaded models."""

import re
from typing import Any

from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import ScriptedHost

ACCOUNT = "desk"
_BASES = {"qwen3-8b": True, "qwen3-8b-vision": False}
_ID = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


class FakeFireworks(ScriptedHost):
    def __init__(self, looks: int) -> None:
        super().__init__()
        self.models: dict[str, dict[str, Any]] = {}
        self.deployments: dict[str, dict[str, Any]] = {}
        self.loaded: dict[str, dict[str, Any]] = {}
        self.uploaded: dict[str, bytes] = {}
        self._looks, self._left = looks, dict[str, int]()

    def left(self) -> int:
        standing = [each for each in self.deployments.values() if each["state"] != "DELETED"]
        return len(self.models) + len(self.loaded) + len(standing)

    def answer(self, call: Call) -> Answer:
        if call.path.startswith("/upload/"):
            return self._put(call)
        if not self.is_authorized(call):
            return self.refuse(call)
        account, _, rest = call.path.removeprefix("/v1/accounts/").partition("/")
        kind, _, name = rest.partition("/")
        name, _, verb = name.partition(":")
        if account == "fireworks" and kind == "models":
            if name not in _BASES:
                return self.error(404, "model not found")
            return Answer({"name": f"accounts/fireworks/models/{name}", "state": "READY", "supportsLora": _BASES[name]})
        if account != ACCOUNT:
            return self.error(403, f"no access to the account {account}")
        match call.method, kind, bool(name), verb:
            case "POST", "models", False, _:
                return self._create_model(call.json)
            case "POST", "models", True, "getUploadEndpoint":
                names = call.json["filenameToSize"]
                return Answer({"filenameToSignedUrls": {each: f"{self.url}/upload/{name}/{each}" for each in names}})
            case "GET", "models", True, "validateUpload":
                return self._validate(name)
            case "GET", "models", True, _:
                return self._look(self.models, name, "READY")
            case "DELETE", "models", True, _:
                return self._delete(self.models, name)
            case "POST", "deployments", False, _:
                return self._create_deployment(call)
            case "POST", "deployments", True, "undelete":
                self.deployments[name]["state"] = "CREATING"
                return Answer(self.deployments[name])
            case "GET", "deployments", True, _:
                return self._look(self.deployments, name, "READY")
            case "DELETE", "deployments", True, _:
                return self._delete_deployment(name)
            case "GET", "deployedModels", False, _:
                model = call.query["filter"].partition("=")[2].strip('"')
                names = [name for name, each in self.loaded.items() if each["model"] == model]
                return Answer({"deployedModels": [self._seen(self.loaded, each, "DEPLOYED") for each in names]})
            case "POST", "deployedModels", False, _:
                return self._load(call.json)
            case "DELETE", "deployedModels", True, _:
                return self._delete(self.loaded, name)
            case _:
                return self.error(404, f"no {call.method} {call.path}")

    def _create_model(self, given: dict[str, Any]) -> Answer:
        name, details = given["modelId"], given["model"]["peftDetails"]
        if not _ID.match(name):
            return self.error(400, "modelId is invalid")
        if not 4 <= details["r"] <= 64:
            return self.error(400, "r must be between 4 and 64")
        if name in self.models:
            return self.error(409, "model exists")
        self.models[name] = {"name": f"accounts/{ACCOUNT}/models/{name}", "state": "UPLOADING", **given["model"]}
        self.made.append(f"model {name}")
        return Answer(self.models[name])

    def _put(self, call: Call) -> Answer:
        _, _, model, name = call.path.split("/")
        if int(call.headers["x-goog-content-length-range"].partition(",")[0]) != len(call.body):
            return self.error(400, "length")
        self.uploaded[f"{model}/{name}"] = call.body
        return Answer(b"")

    def _validate(self, name: str) -> Answer:
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            if f"{name}/{file}" not in self.uploaded:
                return self.error(400, f"{file} was not uploaded")
        self.models[name]["state"] = "VALIDATING"
        return Answer({"warnings": []})

    def _create_deployment(self, call: Call) -> Answer:
        name = call.query["deploymentId"]
        if not call.json.get("enableAddons"):
            return self.error(400, "addons are not enabled")
        if name in self.deployments:
            return self.error(409, "deployment exists")
        self.deployments[name] = {"name": f"accounts/{ACCOUNT}/deployments/{name}", "state": "CREATING", **call.json}
        self.made.append(f"deployment {name}")
        return Answer(self.deployments[name])

    def _delete_deployment(self, name: str) -> Answer:
        if name not in self.deployments or self.deployments[name]["state"] == "DELETED":
            return self.error(404, "deployment not found")
        self.deployments[name]["state"] = "DELETED"
        return Answer({})

    def _load(self, given: dict[str, Any]) -> Answer:
        model = given["model"].rpartition("/")[2]
        if self.models[model]["state"] != "READY":
            return self.error(400, "the model is not ready")
        where = given["deployment"].rpartition("/")[2]
        if self.deployments.get(where, {}).get("state") != "READY":
            return self.error(400, "the deployment is not ready")
        name = f"{model}-{where}"[:63]
        if name in self.loaded:
            return self.error(409, "loaded already")
        self.loaded[name] = {"name": f"accounts/{ACCOUNT}/deployedModels/{name}", "state": "DEPLOYING", **given}
        self.made.append(f"loaded {name}")
        return Answer(self.loaded[name])

    def _look(self, things: dict[str, dict[str, Any]], name: str, ready: str) -> Answer:
        return Answer(self._seen(things, name, ready)) if name in things else self.error(404, f"{name} not found")

    def _seen(self, things: dict[str, dict[str, Any]], name: str, ready: str) -> dict[str, Any]:
        thing = things[name]
        if thing["state"] in ("CREATING", "DEPLOYING", "VALIDATING"):
            left = self._left.setdefault(thing["name"], self._looks)
            self._left[thing["name"]] = left - 1
            if left <= 0:
                thing["state"] = ready
        return thing if thing["state"] != "VALIDATING" else {**thing, "state": "UPLOADING"}

    def _delete(self, things: dict[str, dict[str, Any]], name: str) -> Answer:
        if name not in things:
            return self.error(404, f"{name} not found")
        if things is self.models and any(each["model"].endswith(f"/{name}") for each in self.loaded.values()):
            return self.error(400, "the model is deployed")
        del things[name]
        return Answer({})
