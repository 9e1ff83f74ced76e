"""An adapter as a vLLM server has it: under a name that is never used twice, read from a directory."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(slots=True, eq=False)
class ServedAdapter:
    """An adapter that is loaded at the server; used by the engine's event loop only."""

    name: str
    version: int
    directory: Path
    users: int = 0
    """Requests in flight."""

    def load_request(self) -> dict[str, Any]:
        """The body of `/v1/load_lora_adapter`; experts are adapted as PEFT stacks them, which vLLM wants to be told."""
        body = {"lora_name": self.name, "lora_path": str(self.directory)}
        config = json.loads((self.directory / "adapter_config.json").read_text(encoding="utf-8"))
        return body | ({"is_3d_lora_weight": True} if config.get("target_parameters") else {})
