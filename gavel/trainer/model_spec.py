"""Model specs: the plain data by which a backend knows a model and its policy.

A spec has no methods that reach a backend. `gavel.Model` extends it with the calls that users make.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, field_validator

from gavel.base.fields import Constructed
from gavel.trainer.config import LoraSettings, PolicySettings

_DESCRIBED = {"name", "project", "base_model", "lora", "policy", "renderer"}
_PARTS, _PART = 256, 1 << 14
"""Files larger than `_PARTS * _PART` bytes are hashed by that many parts at even distances."""


class ModelSpec(Constructed):
    """Names a model: its run is kept under `<project>/<name>`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    project: str

    @property
    def key(self) -> tuple[str, str]:
        """The model's unique key: project and name."""
        return self.project, self.name


class TrainableSpec(ModelSpec):
    """A base model and the LoRA adapter that is trained on it."""

    base_model: str
    """`tool-caller`, `embedded/returns-desk`, `embedded/booking-desk`, `smollm2-135m`, a directory, a hub's id."""
    lora: LoraSettings = Field(default_factory=LoraSettings)
    policy: PolicySettings = Field(default_factory=PolicySettings)
    from_checkpoint: str | None = None
    """Begins with the adapter of a checkpoint, of `gavel sft` or of another run, in place of one that changes nothing:
    a run (sft/qwen3-4b), a step of it (sft/qwen3-4b@12), one that was pushed to a store
    (s3://bucket/prefix/sft/qwen3-4b@12), or the directory of an adapter. Its LoRA settings must be these. The run keeps
    a copy."""
    renderer: str | None = None
    """Chat format of the `renderers` library; only for a model that it does not know by name."""

    @field_validator("from_checkpoint", mode="before")
    @classmethod
    def _accept_paths(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value


def describe_model(model: TrainableSpec) -> dict[str, Any]:
    """The description that a run stores of its model; for a base that is a directory, with a digest of each file that
    its weights, tokenizer and chat template are read from."""
    description = model.model_dump(include=_DESCRIBED)
    if (directory := Path(model.base_model)).is_dir():
        found = [*directory.iterdir(), *directory.glob("*/*.jinja")]
        files = sorted(path for path in found if path.suffix in _READ and path.is_file())
        description["base_files"] = {file.relative_to(directory).as_posix(): _digest(file) for file in files}
    return description


_READ = (".safetensors", ".bin", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")


def _digest(file: Path) -> str:
    """Hash of a file's size and of parts spread over it: training changes every layer."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{size}\n".encode())
    with file.open("rb") as opened:
        for start in range(0, size, max(size // _PARTS, _PART)):
            opened.seek(start)
            digest.update(opened.read(_PART))
    return digest.hexdigest()[:16]


def described_fields(description: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `TrainableSpec` in a run's model.json; not `from_checkpoint`, of which the run has a copy."""
    names = TrainableSpec.model_fields.keys() - {"from_checkpoint"}
    return {name: value for name, value in description.items() if name in names}
