"""The part of Ollama's API that makes and removes models."""

import hashlib
import json
from typing import Any

from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import ScriptedHost


class FakeOllama(ScriptedHost):
    names_errors = False

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self.fails_with = ""

    def answer(self, call: Call) -> Answer:
        digest = call.path.removeprefix("/api/blobs/")
        match call.method, call.path:
            case "HEAD", _:
                return Answer({}, 200 if digest in self.blobs else 404)
            case "POST", "/api/create":
                return self._create(call.json)
            case "POST", "/api/show":
                name = call.json["model"]
                if name not in self.models:
                    return self.error(404, f"model '{name}' not found")
                return Answer({"details": {"family": "qwen3"}, "model_info": {}, "capabilities": ["completion"]})
            case "DELETE", "/api/delete":
                name = call.json["model"]
                return Answer({}) if self.models.pop(name, None) else self.error(404, f"model '{name}' not found")
            case _ if digest != call.path:
                if f"sha256:{hashlib.sha256(call.body).hexdigest()}" != digest:
                    return self.error(400, "digest mismatch")
                self.blobs[digest] = call.body
                return Answer({}, 201)
            case _:
                return self.error(404, "not found")

    def _create(self, given: dict[str, Any]) -> Answer:
        if missing := [name for name, digest in given["files"].items() if digest not in self.blobs]:
            return self.error(400, f"blob of {missing[0]} not found")
        lines: list[dict[str, str]] = [{"status": "converting model"}]
        if self.fails_with:
            lines.append({"error": self.fails_with})
        else:
            self.models[given["model"]] = given
            self.made.append(given["model"])
            lines += [{"status": "writing manifest"}, {"status": "success"}]
        return Answer("".join(f"{json.dumps(line)}\n" for line in lines).encode())
