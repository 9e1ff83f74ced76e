"""Checkpoints kept elsewhere: what a store of files does, the store that an address names, and what moves checkpoints.

    <project>/<name>/model.json, metrics.jsonl
    <project>/<name>/checkpoints/000012/…    manifest.json last

A transfer that was cut off is gone on with: files that are there with the right hash are not moved again.
"""

import json
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from gavel.base.errors import GavelError
from gavel.base.files import UNFINISHED, file_sha256, replacing
from gavel.base.secrets import hide_secrets, without_secrets
from gavel.trainer.runs.checkpoints import CARD, MANIFEST, Checkpoints
from gavel.trainer.runs.run_directory import PULLED, RunDirectory, RunDirectoryError, read_description, run_path

KINDS = "s3://bucket/prefix, hf://owner/repository, or a directory"


class StorageError(GavelError):
    """A store cannot be read or written, or does not hold what was asked for."""


class Store(Protocol):
    """Files by name (`a/b/c`). Every method raises `StorageError`."""

    address: str

    def names(self, prefix: str) -> list[str]:
        """The names that begin with `prefix`."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None when there is none."""
        ...

    def has(self, name: str, sha256: str, size: int) -> bool:
        """Whether exactly this file is there."""
        ...

    def send(self, file: Path, name: str, sha256: str) -> None:
        """Copies a file into the store; a reader sees it whole or not at all."""
        ...

    def fetch(self, name: str, file: Path) -> None:
        """Copies a file out of the store."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        ...

    def finish(self) -> None:
        """Readers see all that was sent and removed until now; a store may keep it from them until then."""
        ...


def cannot_be_used(address: str, error: Exception, remedy: str) -> StorageError:
    """The error of a library that reached no store; secrets are taken out of it and of what is told."""
    hide_secrets(error)
    said = (without_secrets(str(error)).strip().splitlines() or [""])[0]
    return StorageError(f"{address} cannot be used: {type(error).__name__}: {said}", remedy)


class FolderStore:
    """A directory: another disk, or a bucket that is mounted. Needs no locks."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory)
        self._directory = directory

    def names(self, prefix: str) -> list[str]:
        with self._errors():
            files = (path for path in self._directory.rglob("*") if path.is_file() and path.suffix != UNFINISHED)
            found = (path.relative_to(self._directory).as_posix() for path in files)
            return sorted(name for name in found if name.startswith(prefix))

    def read(self, name: str) -> bytes | None:
        with self._errors():
            path = self._directory / name
            return path.read_bytes() if path.is_file() else None

    def has(self, name: str, sha256: str, size: int) -> bool:
        with self._errors():
            path = self._directory / name
            return path.is_file() and path.stat().st_size == size and file_sha256(path) == sha256

    def send(self, file: Path, name: str, sha256: str) -> None:
        with self._errors():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                shutil.copyfile(file, unfinished)

    def fetch(self, name: str, file: Path) -> None:
        with self._errors():
            shutil.copyfile(self._directory / name, file)

    def remove(self, name: str) -> None:
        with self._errors():
            (self._directory / name).unlink(missing_ok=True)

    def finish(self) -> None:
        """Each file is there as soon as it is sent."""

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self._directory} cannot be used as a store: {error.strerror or error}",
                "Check the path, that it may be written, and that there is space left.",
            ) from error


def split_place(address: str) -> tuple[str, str, str]:
    """The store, the project and the name of `s3://bucket/prefix/project/name`. Raises `StorageError`."""
    home, _, name = address.rstrip("/").rpartition("/")
    home, _, project = home.rpartition("/")
    if not home or not project or home.endswith("/"):
        raise StorageError(f"{address!r} names no run", f"Give {KINDS}, with /project/name of the run behind it.")
    return home, project, name


def open_store(address: str) -> Store:
    """An S3 bucket, a repository of the Hugging Face Hub, or a directory.

    Raises `StorageError`, also where the library of the store is not installed.
    """
    match address.split("://", 1):
        case ["s3", _]:
            from gavel.trainer.runs.storage.s3 import S3Store

            return S3Store(address)
        case ["hf", _]:
            from gavel.trainer.runs.storage.hub import HubStore

            return HubStore(address)
        case [kind, _]:
            raise StorageError(f"there is no store of the kind {kind!r}", f"Give {KINDS}.")
        case _:
            if re.match(r"(s3|hf|gs|https?):", address):
                raise StorageError(
                    f"{address!r} is no address of a store: // is missing behind the :", f"Give {KINDS}."
                )
            return FolderStore(Path(address))


_NOT_THERE = "The address ends with /project/name of the run, as `gavel push` printed it. Is it pushed?"
_IDENTITY = "base_model", "lora"
"""Fields of model.json that must be equal for a push to continue a stored run."""
_DESCRIPTION, _METRICS = "model.json", "metrics.jsonl"


def push_checkpoint(run: Path, step: int, store: Store, place: str) -> str:
    """Copies the checkpoint of `step` to `place` (project/name) of the store; gives its address there.

    Raises `StorageError`, also for a checkpoint that is not whole, and where a run of other settings has this name.
    """
    checkpoints = Checkpoints(run / "checkpoints")
    if not checkpoints.is_whole(step):
        there = ", ".join(map(str, checkpoints.steps())) or "none"
        raise StorageError(f"{run} has no whole checkpoint of step {step}; it has: {there}", "Name one of these.")
    _check_same_run(run, store, place)
    directory, target = checkpoints.path(step), f"{place}/checkpoints/{step:06d}"
    manifest = directory / MANIFEST
    if store.read(f"{target}/{MANIFEST}") not in (None, manifest.read_bytes()):
        store.remove(f"{target}/{MANIFEST}")  # another run's step of this name: it is not whole while it is replaced
    files = [directory / name for name in json.loads(manifest.read_text())]
    for file in [*files, *(card for card in (directory / CARD,) if card.is_file()), manifest]:
        _send(store, file, f"{target}/{file.relative_to(directory).as_posix()}")
    for name in (_METRICS, _DESCRIPTION):
        if (run / name).is_file():
            _send(store, run / name, f"{place}/{name}")
    store.finish()
    return f"{store.address}/{target}"


def stored_steps(store: Store, place: str) -> list[int]:
    """Steps whose checkpoints are in the store, in order."""
    places = [Path(name) for name in store.names(f"{place}/checkpoints/")]
    return sorted(int(each.parent.name) for each in places if each.name == MANIFEST and each.parent.name.isdecimal())


def pull_checkpoint(store: Store, place: str, step: int | None, root: Path, key: tuple[str, str]) -> int:
    """Copies a checkpoint (default: the newest) into the run `key` under `root`, which is made; gives its step.

    Raises `StorageError` when it is not there or arrives altered; `RunDirectoryError` for a run with other settings.
    """
    steps = stored_steps(store, place)
    if (step := max(steps, default=None) if step is None else step) not in steps:
        asked = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        there = ", ".join(map(str, steps)) or "none"
        raise StorageError(f"{store.address}/{place} has {asked}; it has: {there}", _NOT_THERE)
    source = f"{place}/checkpoints/{step:06d}"
    hashes = _json(store, f"{source}/{MANIFEST}")
    described = description(store, place) | {"project": key[0], "name": key[1]}
    directory = RunDirectory(root, *key)
    try:
        begun = directory.description()
        if begun and {**begun, "format_version": 0} != {**described, "format_version": 0}:
            raise RunDirectoryError(
                f"the run in {directory.path} was begun with other settings than {store.address}/{place}",
                "Give the run that is pulled another name.",
            )
        if not directory.checkpoints.is_whole(step):
            unfinished = directory.path / PULLED / f"{step:06d}"
            for name, sha256 in hashes.items():
                _fetch(store, source, name, unfinished / name, sha256)
            if (card := store.read(f"{source}/{CARD}")) is not None:
                (unfinished / CARD).write_bytes(card)
            directory.checkpoints.save(step, lambda copy: _copy(unfinished, [*hashes, CARD], copy))
        shutil.rmtree(directory.path / PULLED, ignore_errors=True)
        if not begun:
            (directory.path / _METRICS).write_bytes(store.read(f"{place}/{_METRICS}") or b"")
            directory.describe({name: value for name, value in described.items() if name != "from_checkpoint"})
    finally:
        directory.close()
    return step


def pull_named(address: str, root: Path) -> Path:
    """The directory of the checkpoint `s3://bucket/prefix/project/name@12` (default: the newest), copied under `root`.

    Raises `StorageError`.
    """
    head, at, tail = address.rpartition("@")
    place, step = (head, int(tail)) if at and tail.isdecimal() else (address, None)
    home, project, name = split_place(place)
    found = pull_checkpoint(open_store(home), f"{project}/{name}", step, root, (project, name))
    return Checkpoints(run_path(root, project, name) / "checkpoints").path(found)


def _check_same_run(run: Path, store: Store, place: str) -> None:
    """Somebody else's model of this name is not written over."""
    if not (run / _DESCRIPTION).is_file() or store.read(f"{place}/{_DESCRIPTION}") is None:
        return
    there, here = description(store, place), read_description(run / _DESCRIPTION)
    if others := [name for name in _IDENTITY if there.get(name) != here.get(name)]:
        raise StorageError(
            f"another run is at {store.address}/{place}: it was begun with another {others[0]}",
            f"Push to a place of its own: {store.address}/another-name",
        )


def description(store: Store, place: str) -> dict[str, Any]:
    """The stored run's model.json. Raises `StorageError` if there is none."""
    return _json(store, f"{place}/{_DESCRIPTION}")


def _copy(source: Path, names: list[str], copy: Path) -> None:
    for name in names:
        if (source / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, copy / name)


def _send(store: Store, file: Path, name: str) -> None:
    sha256 = file_sha256(file)
    if not store.has(name, sha256, file.stat().st_size):
        store.send(file, name, sha256)


def _fetch(store: Store, source: str, name: str, file: Path, sha256: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise StorageError(f"{store.address} names a file outside the checkpoint: {name}", "Is it to be trusted?")
    if file.is_file() and file_sha256(file) == sha256:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    store.fetch(f"{source}/{name}", file)
    if file_sha256(file) != sha256:
        raise StorageError(f"{source}/{name} of {store.address} arrived altered", "Push the checkpoint again.")


def _json(store: Store, name: str) -> dict[str, Any]:
    content = store.read(name)
    try:
        found = json.loads(content or b"")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StorageError(f"{store.address} has no {name} that can be read", "Push the checkpoint there again.")
    return cast("dict[str, Any]", found)
