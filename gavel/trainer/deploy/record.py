"""The deployed adapter, and the journal of its deployment: `deployments/<id>.json` in the run directory.

    record = open_record(run, address="together", adapter=facts, options={})
    record.save(state="deploying")              before the host is asked to create anything

Whatever is created has the record's deterministic name, and is looked up by it first: a process that was killed goes on
with what is there. No key is ever written: a record holds the name of its variable.
"""

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from gavel.base.errors import GavelError
from gavel.base.files import file_sha256, locked, write_atomically

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DEPLOYMENTS = "deployments"


class DeployError(GavelError):
    """A checkpoint cannot be deployed, or a deployment cannot be used or removed."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """A checkpoint of a run as a host sees it, read from its files without torch."""

    directory: Path
    """Holds adapter_config.json and adapter_model.safetensors."""
    project: str
    name: str
    step: int
    base_model: str
    """The run's name of it: a Hub id, a directory, or a built-in model."""
    rank: int
    targets: tuple[str, ...]
    """Last parts of the adapted layers' names, sorted: k_proj, q_proj, …"""
    size: int
    """Bytes of the weights."""
    sha256: str
    """SHA-256 of the weights."""
    license: str | None
    """Licence of the base model, where its card is here."""
    special: tuple[str, ...] = ()
    """Features beyond plain LoRA: rslora, dora, modules_to_save, embeddings, experts."""

    @property
    def base_is_local(self) -> bool:
        """Whether the base is a directory or a built-in model, which no host has."""
        return Path(self.base_model).is_dir() or self.base_model.startswith("embedded/")

    def files(self) -> list[Path]:
        """The files to upload: the adapter's two."""
        return [self.directory / CONFIG, self.directory / WEIGHTS]


def read_facts(directory: Path, *, project: str, name: str, step: int, base_model: str) -> AdapterFacts:
    """Raises `DeployError` for a directory that holds no readable adapter."""
    from safetensors import SafetensorError, safe_open

    from gavel.trainer.runs.model_card import base_license

    try:
        config: dict[str, Any] = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        rank = int(config.get("r") or 0)
        opened: Any = safe_open(directory / WEIGHTS, framework="np")
        with opened as weights:
            tensors: list[str] = list(weights.keys())
        sha256 = file_sha256(directory / WEIGHTS)
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        raise DeployError(f"{directory} holds no adapter that can be read: {error}", "Name another step.") from error
    layers = [key.partition(".lora_")[0].removesuffix(".base_layer") for key in tensors if ".lora_" in key]
    if not layers:
        raise DeployError(f"{directory / WEIGHTS} holds no LoRA weights", "Name another step.")
    special = {
        "rslora": config.get("use_rslora"),
        "dora": config.get("use_dora"),
        "experts": config.get("target_parameters"),
        "modules_to_save": config.get("modules_to_save"),
        "embeddings": any(".lora_embedding_" in key or "embed_tokens" in key for key in tensors),
    }
    return AdapterFacts(
        directory=directory,
        project=project,
        name=name,
        step=step,
        base_model=base_model,
        rank=rank,
        targets=tuple(sorted({layer.rpartition(".")[2] for layer in layers})),
        size=(directory / WEIGHTS).stat().st_size,
        sha256=sha256,
        license=base_license(base_model),
        special=tuple(word for word, has in special.items() if has),
    )


class DeploymentRecord(BaseModel):
    """Record of one deployment; every change is on disk when the call returns."""

    path: Path = Field(exclude=True)
    address: str
    """The address given to `open_host`, such as vllm:http://10.0.0.2:8000."""
    options: dict[str, Any]
    """Options of the host, without secrets; the same are used to undeploy."""
    adapter: AdapterFacts
    state: Literal["deploying", "deployed", "undeploying", "undeployed"] = "deploying"
    price: str = ""
    """The price stated by the host; empty if it states none."""
    deployed: dict[str, Any] = Field(default_factory=dict)
    """base_url, model_id and key_variable once the host serves."""
    smoke_test: str = ""
    """Its result in a sentence; empty before it ran."""
    begun: float = Field(default_factory=time.time)
    format_version: Literal[1] = 1

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def remote_name(self) -> str:
        """The name of whatever this deployment creates: the same at every attempt, at most 63 of [a-z0-9-]."""
        of = self.adapter
        plain = re.sub(r"[^a-z0-9]+", "-", f"{of.project}-{of.name}".lower()).strip("-")[:30].rstrip("-")
        digest = hashlib.sha256(json.dumps([of.project, of.name, of.step, of.sha256]).encode()).hexdigest()
        return f"gavel-{plain}-s{of.step}-{digest[:10]}"

    @property
    def directory(self) -> Path:
        """Where files of the deployment lie on this machine, until it is removed."""
        return self.path.with_suffix("")

    def save(self, **changes: Any) -> None:
        """Raises `DeployError` when the record cannot be written: then nothing must be created."""
        for name, value in changes.items():
            setattr(self, name, value)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, self.model_dump_json(indent=1), durable=True)
        except OSError as error:
            raise DeployError(
                f"the record {self.path} cannot be written: {error.strerror}",
                "Make room, or make the run directory writable; nothing more was asked of the host.",
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Raises `DeployError` while another process works on this deployment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_suffix(".lock")
        lock.touch()
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(lock))
            except BlockingIOError as error:
                raise DeployError(f"another process is working on the deployment {self.id}", "Wait for it.") from error
            yield


def open_record(run: Path, *, address: str, adapter: AdapterFacts, options: Mapping[str, Any]) -> DeploymentRecord:
    """The record of this adapter at this address: the one that is there, or a new one, not yet saved.

    Other options do not make another deployment: what failed for a wrong one goes on with the right one. A record that
    was undeployed begins anew. Raises `DeployError` for a record that cannot be read.
    """
    digest = hashlib.sha256(json.dumps([address, adapter.sha256]).encode()).hexdigest()
    path = run / DEPLOYMENTS / f"{address.partition(':')[0]}-{adapter.step:06d}-{digest[:8]}.json"
    given: dict[str, Any] = {"options": dict(options), "adapter": adapter}
    if path.is_file() and (known := read_record(path)).state != "undeployed":
        return known.model_copy(update=given)
    return DeploymentRecord(path=path, address=address, **given)


def read_record(path: Path) -> DeploymentRecord:
    """Raises `DeployError` for a file that is no record of a version that this Gavel reads."""
    try:
        return DeploymentRecord(path=path, **json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DeployError(
            f"{path} is no record of a deployment that this version of Gavel reads: {error}",
            "Look at the host's own console for what it still serves, and then delete the file.",
        ) from error


def read_records(run: Path) -> list[DeploymentRecord]:
    """The records of a run, oldest first."""
    found = [read_record(path) for path in (run / DEPLOYMENTS).glob("*.json") if not path.name.startswith(".")]
    return sorted(found, key=lambda record: record.begun)


def find_records(root: Path, named: str | None) -> list[DeploymentRecord]:
    """Records of a run (`desk/clerk`, or its directory), or the one of this id; without a name, of all runs.

    Raises `DeployError` for a name that is neither.
    """
    for run in (Path(named), root / named) if named else ():
        if (run / "model.json").is_file() or (run / DEPLOYMENTS).is_dir():
            return read_records(run)
    runs = sorted(path.parent for path in root.glob(f"*/*/{DEPLOYMENTS}"))
    found = [each for run in runs for each in read_records(run) if named in (None, each.id)]
    if named and not found:
        raise DeployError(f"there is no deployment or run {named!r} in {root}", "`gavel deployments --all` lists them.")
    return found
