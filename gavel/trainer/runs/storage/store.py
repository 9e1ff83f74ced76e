"""What a store of files does, and the one that an address names."""

import re
from pathlib import Path
from typing import Protocol

from gavel.base.errors import GavelError

KINDS = "s3://bucket/prefix, hf://owner/repository, wandb://entity/project/name, or a directory"


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


def split_place(address: str) -> tuple[str, str, str]:
    """The store, the project and the name of `s3://bucket/prefix/project/name`. Raises `StorageError`."""
    home, _, name = address.rstrip("/").rpartition("/")
    home, _, project = home.rpartition("/")
    if not home or not project or home.endswith("/"):
        raise StorageError(f"{address!r} names no run", f"Give {KINDS}, with /project/name of the run behind it.")
    return home, project, name


def open_store(address: str) -> Store:
    """An S3 bucket, a repository of the Hugging Face Hub, an artifact of Weights & Biases, or a directory.

    Raises `StorageError`, also where the library of the store is not installed.
    """
    kind, separator, _ = address.partition("://")
    match kind if separator else "":
        case "s3":
            from gavel.trainer.runs.storage.s3 import S3Store

            return S3Store(address)
        case "hf":
            from gavel.trainer.runs.storage.hub import HubStore

            return HubStore(address)
        case "wandb":
            from gavel.trainer.runs.storage.wandb_store import WandbStore

            return WandbStore(address)
        case "":
            if re.match(r"(s3|hf|wandb|gs|https?):", address):
                raise StorageError(
                    f"{address!r} is no address of a store: // is missing behind the :", f"Give {KINDS}."
                )
        case _:
            raise StorageError(f"there is no store of the kind {address!r}", f"Give {KINDS}.")
    from gavel.trainer.runs.storage.folder import FolderStore

    return FolderStore(Path(address))
