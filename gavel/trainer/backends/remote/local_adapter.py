"""An adapter on the client's machine: what the server is told of it, and the files that are uploaded."""

import os
from dataclasses import dataclass
from pathlib import Path

from gavel.trainer.backends.remote.batch_file import BatchFile
from gavel.trainer.backends.remote.wire import SentAdapter
from gavel.trainer.runs.file_hash import file_sha256
from gavel.trainer.runs.named_checkpoint import find_checkpoint, names_something
from gavel.trainer.runs.run_directory import read_description

_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class LocalAdapter:
    sent: SentAdapter
    files: list[BatchFile]


def local_start(named: str, root: Path) -> LocalAdapter | None:
    """The checkpoint that a run is to begin with; None for a name that is nothing here, so that of one on the server.

    Raises `NamedCheckpointError` for a run or directory without a whole checkpoint.
    """
    if not names_something(named, root):
        return None
    directory = find_checkpoint(named, root)
    run = directory.parent.parent / "model.json"
    described = read_description(run) if directory.parent.name == "checkpoints" and run.is_file() else {}
    if not described:
        return _adapter(named, directory)
    of = f"{described.get('project')}/{described.get('name')}"
    return _adapter(named, directory, run=of, step=int(directory.name), base_model=described.get("base_model"))


def local_reference(directory: Path) -> LocalAdapter | None:
    """None for a directory that holds no adapter here."""
    return _adapter(str(directory), directory) if all((directory / name).is_file() for name in _FILES) else None


def _adapter(named: str, directory: Path, **origin: str | int | None) -> LocalAdapter:
    paths = {name: directory / name for name in _FILES if (directory / name).is_file()}
    files = {name: BatchFile(path, file_sha256(path), path.stat().st_size) for name, path in paths.items()}
    hashes = {name: file.sha256 for name, file in files.items()}
    fields = {"named": named, "directory": os.path.abspath(directory), "files": hashes, **origin}
    return LocalAdapter(SentAdapter.model_validate(fields), list(files.values()))
