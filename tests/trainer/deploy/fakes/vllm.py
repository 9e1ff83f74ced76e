"""What vLLM does with adapters while it serves."""

from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import KEY, ScriptedHost

BASE = "org/base"


class FakeVllm(ScriptedHost):
    def __init__(self) -> None:
        super().__init__()
        self.loads_adapters = True
        """Whether it was started with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
        self.adapters: dict[str, str] = {}
        self.seen: list[dict[str, object]] = []

    def answer(self, call: Call) -> Answer:
        if not self.is_authorized(call):
            return self.refuse(call)
        if call.path == "/v1/models":
            names = [(BASE, None), *((name, BASE) for name in self.adapters)]
            return Answer({"data": [{"id": name, "root": name, "parent": parent} for name, parent in names]})
        if not self.loads_adapters:
            return Answer({"detail": "Not Found"}, 404)
        name = call.json["lora_name"]
        if call.path == "/v1/unload_lora_adapter":
            gone = self.adapters.pop(name, None)
            return Answer(b"done") if gone else self.error(404, f"adapter {name} is not loaded")
        self.seen.append(call.json)
        self.adapters[name] = call.json["lora_path"]
        self.made.append(name)
        return Answer(b"done")

    def is_authorized(self, call: Call) -> bool:
        return call.headers.get("authorization", f"Bearer {KEY}") == f"Bearer {KEY}"
