"""The API of Hugging Face's Inference Endpoints on loopback; the Hub itself is `tests.fake_hub`."""

from typing import Any

from tests.fake_hub import TOKEN, FakeHub
from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import ScriptedHost

_WHEN = "2026-11-01T00:00:00.000Z"


class FakeEndpoints(ScriptedHost):
    key, names_errors = TOKEN, False

    def __init__(self, hub: FakeHub, looks: int) -> None:
        super().__init__()
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.fails_with = ""
        self._hub, self._looks = hub, looks

    def answer(self, call: Call) -> Answer:
        if not self.is_authorized(call):
            return self.refuse(call)
        kind, _, rest = call.path.removeprefix("/v2/").partition("/")
        _, _, name = rest.partition("/")
        match call.method, kind, bool(name):
            case "GET", "provider", _:
                computes = [_compute("nvidia-l4", "available"), _compute("nvidia-h200", "unavailable")]
                region = {"name": "us-east-1", "computes": computes}
                return Answer({"vendors": [{"name": "aws", "regions": [region]}]})
            case "POST", "endpoint", False:
                return self._create(call.json)
            case "GET", "endpoint", True:
                return self._look(name)
            case "DELETE", "endpoint", True:
                return Answer({}) if self.endpoints.pop(name, None) else self.error(404, "not found")
            case _:
                return self.error(404, "not found")

    def _create(self, given: dict[str, Any]) -> Answer:
        if len(given["name"]) > 32:
            return self.error(400, "name is longer than 32 characters")
        if given["model"]["repository"] not in self._hub.repositories:
            return self.error(400, "repository not found")
        if given["name"] in self.endpoints:
            return self.error(409, "endpoint exists")
        status = {"state": "pending", "createdAt": _WHEN, "updatedAt": _WHEN, "left": self._looks}
        self.endpoints[given["name"]] = {**given, "healthRoute": "/health", "status": status}
        self.made.append(given["name"])
        return Answer(self.endpoints[given["name"]])

    def _look(self, name: str) -> Answer:
        if name not in self.endpoints:
            return self.error(404, "not found")
        status = self.endpoints[name]["status"]
        status["left"] -= 1
        if self.fails_with:
            status |= {"state": "failed", "message": self.fails_with}
        elif status["left"] < 0:
            status |= {"state": "running", "url": f"{self.url}/served/{name}"}
        else:
            status["state"] = "initializing"
        return Answer(self.endpoints[name])


def _compute(kind: str, status: str) -> dict[str, Any]:
    machine = {"accelerator": "gpu", "instanceType": kind, "instanceSize": "x1", "pricePerHour": 0.8}
    machine |= {"architecture": kind, "numAccelerators": 1, "memoryGb": 30}
    quota = {"maxAccelerators": 2, "usedAccelerators": 0}
    return machine | {"id": f"aws-us-east-1-{kind}-x1", "status": status, "quota": quota}
