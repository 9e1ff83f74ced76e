"""Which models clients have registered, kept in a file: a server that is started again knows them."""

import json
from pathlib import Path
from typing import Any

from gavel.base.files import write_atomically
from gavel.trainer.model_spec import ModelSpec, TrainableSpec


class Registrations:
    """By (project, name): the model, and the client that may change it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}

    def spec(self, key: tuple[str, str]) -> ModelSpec | None:
        entry = self._entries.get("/".join(key))
        if entry is None:
            return None
        kind = TrainableSpec if entry["trainable"] else ModelSpec
        return kind.model_validate(entry["spec"])

    def writer(self, key: tuple[str, str]) -> str | None:
        entry = self._entries.get("/".join(key))
        return entry["writer"] if entry else None

    def add(self, spec: ModelSpec, writer: str) -> None:
        entry = {"trainable": isinstance(spec, TrainableSpec), "writer": writer, "spec": spec.model_dump(mode="json")}
        self._entries["/".join(spec.key)] = entry
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, json.dumps(self._entries, indent=1))
