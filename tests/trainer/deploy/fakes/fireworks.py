"""Fireworks' control plane on loopback, as published: models, uploads, deployments, loaded models."""

import re
from typing import Any

from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import ScriptedHost

ACCOUNT = "desk"
_BASES = {"qwen3-8b": True, "qwen3-8b-vision": False}
_FILES = ("adapter_config.json", "adapter_model.safetensors")
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
                given = call.json
                if not _ID.match(given["modelId"]) or not 4 <= given["model"]["peftDetails"]["r"] <= 64:
                    return self.error(400, "modelId is invalid, or r is not between 4 and 64")
                return self._make(kind, self.models, given["modelId"], "UPLOADING", given["model"])
            case "POST", "models", True, "getUploadEndpoint":
                names = call.json["filenameToSize"]
                return Answer({"filenameToSignedUrls": {each: f"{self.url}/upload/{name}/{each}" for each in names}})
            case "GET", "models", True, "validateUpload":
                if lacking := [file for file in _FILES if f"{name}/{file}" not in self.uploaded]:
                    return self.error(400, f"{lacking} were not uploaded")
                self.models[name]["state"] = "VALIDATING"
                return Answer({"warnings": []})
            case "GET", "models" | "deployments", True, _:
                things = self.models if kind == "models" else self.deployments
                return Answer(self._seen(things[name])) if name in things else self.error(404, f"{name} not found")
            case "DELETE", "models" | "deployedModels", True, _:
                if kind == "models" and any(each["model"].endswith(f"/{name}") for each in self.loaded.values()):
                    return self.error(400, "the model is deployed")
                things = self.models if kind == "models" else self.loaded
                return Answer({}) if things.pop(name, None) else self.error(404, f"{name} not found")
            case "POST", "deployments", False, _:
                if not call.json.get("enableAddons"):
                    return self.error(400, "addons are not enabled")
                return self._make(kind, self.deployments, call.query["deploymentId"], "CREATING", call.json)
            case "POST", "deployments", True, "undelete":
                self.deployments[name]["state"] = "CREATING"
                return Answer(self.deployments[name])
            case "DELETE", "deployments", True, _:
                if self.deployments.get(name, {"state": "DELETED"})["state"] == "DELETED":
                    return self.error(404, "deployment not found")
                self.deployments[name]["state"] = "DELETED"
                return Answer({})
            case "GET", "deployedModels", False, _:
                model = call.query["filter"].partition("=")[2].strip('"')
                loaded = [each for each in self.loaded.values() if each["model"] == model]
                return Answer({"deployedModels": list(map(self._seen, loaded))})
            case "POST", "deployedModels", False, _:
                model, where = (call.json[each].rpartition("/")[2] for each in ("model", "deployment"))
                if not self.models[model]["state"] == self.deployments.get(where, {}).get("state") == "READY":
                    return self.error(400, "the model or the deployment is not ready")
                return self._make(kind, self.loaded, f"{model}-{where}"[:63], "DEPLOYING", call.json)
            case _:
                return self.error(404, f"no {call.method} {call.path}")

    def _make(self, kind: str, things: dict[str, Any], name: str, state: str, given: dict[str, Any]) -> Answer:
        if name in things:
            return self.error(409, f"{name} exists")
        things[name] = {"name": f"accounts/{ACCOUNT}/{kind}/{name}", "state": state, **given}
        self.made.append(f"{kind} {name}")
        return Answer(things[name])

    def _put(self, call: Call) -> Answer:
        _, _, model, name = call.path.split("/")
        if int(call.headers["x-goog-content-length-range"].partition(",")[0]) != len(call.body):
            return self.error(400, "length")
        self.uploaded[f"{model}/{name}"] = call.body
        return Answer(b"")

    def _seen(self, thing: dict[str, Any]) -> dict[str, Any]:
        if thing["state"] in ("CREATING", "DEPLOYING", "VALIDATING"):
            left = self._left.setdefault(thing["name"], self._looks)
            self._left[thing["name"]] = left - 1
            if left <= 0:
                thing["state"] = "DEPLOYED" if thing["state"] == "DEPLOYING" else "READY"
        return thing if thing["state"] != "VALIDATING" else {**thing, "state": "UPLOADING"}
