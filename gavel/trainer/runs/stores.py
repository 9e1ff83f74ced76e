"""Checkpoints kept elsewhere: in an S3-compatible store, the Hugging Face Hub, or a directory.

    store = open_store("s3://backups/gavel")
    push_checkpoint(Path("runs/desk/clerk"), 12, store, "desk/clerk")
    pull_checkpoint(store, "desk/clerk", 12, Path("elsewhere"), ("desk", "clerk"))

A store has `<project>/<name>/` of a run with model.json, metrics.jsonl and checkpoints/000012/…, each of which its
manifest.json, sent last, makes whole. A transfer that was cut off is gone on with: what is there with the right hash is
not moved again.
"""

# pyright: reportMissingTypeStubs=false

import contextlib
import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.base.files import UNFINISHED, file_sha256, replacing
from gavel.base.network import TRANSPORT_ERRORS
from gavel.base.secrets import hide_secrets, without_secrets
from gavel.trainer.runs.checkpoints import CARD, MANIFEST, Checkpoints
from gavel.trainer.runs.run_directory import PULLED, RunDirectory, RunDirectoryError, read_description, run_path

KINDS = "s3://bucket/prefix, hf://owner/repository, or a directory"
_P = ParamSpec("_P")
_T = TypeVar("_T")


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

    def send(self, files: Mapping[str, Path]) -> None:
        """Copies files into the store, in this order, without those that are there. A reader sees each whole."""
        ...

    def fetch(self, name: str, file: Path) -> None:
        """Copies a file out of the store."""
        ...


def _translate(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Makes the `errors` of a store's library a `StorageError` with its `remedy`, without the secrets in them."""

    @functools.wraps(method)
    def call(self: Any, *arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return method(self, *arguments, **named)
        except self.errors as error:
            hide_secrets(error)
            said = (without_secrets(str(error)).strip().splitlines() or [""])[0]
            raise StorageError(f"{self.address} cannot be used: {type(error).__name__}: {said}", self.remedy) from error

    return call


class FolderStore:
    """A directory: another disk, or a bucket that is mounted. Needs no locks."""

    errors = (OSError,)
    remedy = "Check the path, that it may be written, and that there is space left."

    def __init__(self, directory: Path) -> None:
        self.address = str(directory)
        self._directory = directory

    @_translate
    def names(self, prefix: str) -> list[str]:
        files = (path for path in self._directory.rglob("*") if path.is_file() and path.suffix != UNFINISHED)
        found = (path.relative_to(self._directory).as_posix() for path in files)
        return sorted(name for name in found if name.startswith(prefix))

    @_translate
    def read(self, name: str) -> bytes | None:
        path = self._directory / name
        return path.read_bytes() if path.is_file() else None

    @_translate
    def send(self, files: Mapping[str, Path]) -> None:
        for name, file in files.items():
            path = self._directory / name
            if not path.is_file() or file_sha256(path) != file_sha256(file):
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as unfinished:
                    shutil.copyfile(file, unfinished)

    @_translate
    def fetch(self, name: str, file: Path) -> None:
        shutil.copyfile(self._directory / name, file)


class S3Store:
    """`s3://bucket/prefix`; credentials, region, endpoint and retries as boto3 finds them (AWS_ACCESS_KEY_ID …).

    An object's metadata has its SHA-256: a multipart upload has no hash of the whole in S3's own fields.
    """

    remedy = (
        "Check the bucket's name and that it is there, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN, or "
        "none), AWS_DEFAULT_REGION for its region, AWS_ENDPOINT_URL_S3 for a store that is not Amazon's, and this "
        "machine's clock. What arrived is not sent again."
    )

    def __init__(self, address: str) -> None:
        try:
            from boto3.exceptions import Boto3Error
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise StorageError("s3:// needs boto3, which is not installed", install_line("s3")) from error
        self.errors = (Boto3Error, BotoCoreError, ClientError)
        self.address = address.rstrip("/")
        self._bucket, _, prefix = address.removeprefix("s3://").rstrip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        if not self._bucket:
            raise StorageError(f"{address!r} names no bucket", "Give s3://bucket/prefix.")
        self._s3 = self._connect()

    @_translate
    def _connect(self) -> Any:
        import boto3

        return boto3.client("s3")  # pyright: ignore

    @_translate
    def names(self, prefix: str) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
        return [each["Key"].removeprefix(self._prefix) for page in pages for each in page.get("Contents", ())]

    @_translate
    def read(self, name: str) -> bytes | None:
        found = self._find(self._s3.get_object, name)
        return None if found is None else found["Body"].read()

    @_translate
    def send(self, files: Mapping[str, Path]) -> None:
        for name, file in files.items():
            sha256 = file_sha256(file)
            found = self._find(self._s3.head_object, name)
            if found is None or found["Metadata"].get("sha256") != sha256:
                extra = {"Metadata": {"sha256": sha256}, "ChecksumAlgorithm": "SHA256"}
                self._s3.upload_file(str(file), self._bucket, self._prefix + name, ExtraArgs=extra)

    @_translate
    def fetch(self, name: str, file: Path) -> None:
        self._s3.download_file(self._bucket, self._prefix + name, str(file))

    def _find(self, ask: Callable[..., Any], name: str) -> Any:
        """The answer of S3; None where there is no such object."""
        from botocore.exceptions import ClientError

        try:
            return ask(Bucket=self._bucket, Key=self._prefix + name)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise


class HubStore:
    """`hf://owner/repository/prefix` of the Hugging Face Hub; the library finds the token (HF_TOKEN, `hf auth login`).

    The first files that are sent make the repository, private. Files appear together, in one commit; large ones that
    arrived before a push was cut off are known by their hash and not sent again.
    """

    errors = (*TRANSPORT_ERRORS, OSError, RuntimeError, ValueError)  # the library's own are such, too
    remedy = (
        "Check the repository's name, that HF_TOKEN (or `hf auth login`) may read and write it, and HF_ENDPOINT for a "
        "Hub that is not Hugging Face's."
    )

    def __init__(self, address: str) -> None:
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise StorageError("hf:// needs huggingface_hub, which is not installed", install_line("train")) from error
        self.address = address.rstrip("/")
        owner, _, rest = self.address.removeprefix("hf://").partition("/")
        name, _, prefix = rest.partition("/")
        if not owner or not name:
            raise StorageError(f"{address!r} names no repository", "Give hf://owner/repository, or a prefix in it.")
        self._repository = f"{owner}/{name}"
        self._prefix = f"{prefix}/" if prefix else ""
        self._hub: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)

    @_translate
    def names(self, prefix: str) -> list[str]:
        from huggingface_hub import RepoFile
        from huggingface_hub.errors import EntryNotFoundError

        folder = f"{self._prefix}{prefix}".rpartition("/")[0]
        tree, paths = self._hub.list_repo_tree(self._repository, folder or None, recursive=True), list[str]()
        with contextlib.suppress(EntryNotFoundError):
            paths = [entry.path.removeprefix(self._prefix) for entry in tree if isinstance(entry, RepoFile)]
        return sorted(path for path in paths if path.startswith(prefix))

    @_translate
    def read(self, name: str) -> bytes | None:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        with TemporaryDirectory() as scratch, contextlib.suppress(EntryNotFoundError, RepositoryNotFoundError):
            return Path(self._download(name, scratch)).read_bytes()

    @_translate
    def send(self, files: Mapping[str, Path]) -> None:
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(self._prefix + name, str(file)) for name, file in files.items()]
        self._hub.create_repo(self._repository, private=True, exist_ok=True)
        self._hub.create_commit(self._repository, operations, commit_message="Checkpoint of a Gavel run")

    @_translate
    def fetch(self, name: str, file: Path) -> None:
        with TemporaryDirectory(dir=file.parent, prefix=".hub-") as scratch:
            shutil.move(self._download(name, scratch), file)

    def _download(self, name: str, folder: str) -> str:
        return self._hub.hf_hub_download(self._repository, self._prefix + name, local_dir=folder)


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
    kind = re.match(r"([a-z0-9]+)://", address)
    if kind is None and not re.match(r"(s3|hf|gs|https?):", address):
        return FolderStore(Path(address))
    match kind and kind[1]:
        case "s3":
            return S3Store(address)
        case "hf":
            return HubStore(address)
        case None:
            raise StorageError(f"{address!r} is no address of a store: // is missing behind the :", f"Give {KINDS}.")
        case other:
            raise StorageError(f"there is no store of the kind {other!r}", f"Give {KINDS}.")


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
    if (run / _DESCRIPTION).is_file() and store.read(f"{place}/{_DESCRIPTION}") is not None:
        there, here = description(store, place), read_description(run / _DESCRIPTION)
        if others := [name for name in _IDENTITY if there.get(name) != here.get(name)]:
            raise StorageError(
                f"another run is at {store.address}/{place}: it was begun with another {others[0]}",
                f"Push to a place of its own: {store.address}/another-name",
            )
    directory, target = checkpoints.path(step), f"{place}/checkpoints/{step:06d}"
    parts = [*json.loads((directory / MANIFEST).read_text()), CARD, MANIFEST]
    files = {f"{target}/{name}": directory / name for name in parts}
    files |= {f"{place}/{name}": run / name for name in (_METRICS, _DESCRIPTION)}
    store.send({name: file for name, file in files.items() if file.is_file()})
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
        raise StorageError(
            f"{store.address}/{place} has {asked}; it has: {', '.join(map(str, steps)) or 'none'}",
            "The address ends with /project/name of the run, as `gavel push` printed it. Is it pushed?",
        )
    source = f"{place}/checkpoints/{step:06d}"
    hashes = _read_json(store, f"{source}/{MANIFEST}")
    described = description(store, place) | {"project": key[0], "name": key[1]}
    with contextlib.closing(RunDirectory(root, *key)) as directory:
        arrived = directory.path / PULLED / f"{step:06d}"

        def write(checkpoint: Path) -> None:
            if card is not None:
                (checkpoint / CARD).write_bytes(card)
            for name in hashes:
                (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
                (arrived / name).rename(checkpoint / name)

        begun = directory.description()
        if begun and {**begun, "format_version": 0} != {**described, "format_version": 0}:
            raise RunDirectoryError(
                f"the run in {directory.path} was begun with other settings than {store.address}/{place}",
                "Give the run that is pulled another name.",
            )
        if not directory.checkpoints.is_whole(step):
            for name, sha256 in hashes.items():
                _fetch(store, source, name, arrived / name, sha256)
            card = store.read(f"{source}/{CARD}")
            directory.checkpoints.save(step, write)
        shutil.rmtree(directory.path / PULLED, ignore_errors=True)
        if not begun:
            (directory.path / _METRICS).write_bytes(store.read(f"{place}/{_METRICS}") or b"")
            directory.describe({name: value for name, value in described.items() if name != "from_checkpoint"})
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


def description(store: Store, place: str) -> dict[str, Any]:
    """The stored run's model.json. Raises `StorageError` if there is none."""
    return _read_json(store, f"{place}/{_DESCRIPTION}")


def _fetch(store: Store, source: str, name: str, file: Path, sha256: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise StorageError(f"{store.address} names a file outside the checkpoint: {name}", "Is it to be trusted?")
    if file.is_file() and file_sha256(file) == sha256:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    store.fetch(f"{source}/{name}", file)
    if file_sha256(file) != sha256:
        raise StorageError(f"{source}/{name} of {store.address} arrived altered", "Push the checkpoint again.")


def _read_json(store: Store, name: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        if isinstance(found := json.loads(store.read(name) or b""), dict):
            return cast("dict[str, Any]", found)
    raise StorageError(f"{store.address} has no {name} that can be read", "Push the checkpoint there again.")
