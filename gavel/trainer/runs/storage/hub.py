"""A repository of the Hugging Face Hub as a store; the token is the library's own (HF_TOKEN, `hf auth login`).

Large files are uploaded as they are sent, by their hash, so a push that was cut off sends none of them again. All of a
checkpoint appears in one commit, or none of it.
"""

# pyright: reportMissingTypeStubs=false

import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gavel.base.extras import install_line
from gavel.base.network import TRANSPORT_ERRORS
from gavel.trainer.runs.storage.store import StorageError, cannot_be_used


class HubStore:
    """`hf://owner/repository/prefix`. The repository is made, private, by the first file that is sent."""

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
        self._made = False
        self._pending: dict[str, Any] = {}

    def names(self, prefix: str) -> list[str]:
        folder = f"{self._prefix}{prefix}".rpartition("/")[0]
        with self._errors():
            paths = [entry.path.removeprefix(self._prefix) for entry in self._files(folder)]
        return sorted(path for path in paths if path.startswith(prefix))

    def read(self, name: str) -> bytes | None:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        with self._errors(), TemporaryDirectory() as scratch:
            try:
                return Path(self._download(name, Path(scratch))).read_bytes()
            except (EntryNotFoundError, RepositoryNotFoundError):
                return None

    def has(self, name: str, sha256: str, size: int) -> bool:
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._errors():
            try:
                found = self._hub.get_paths_info(self._repository, [self._prefix + name])
            except RepositoryNotFoundError:
                return False
            if not found or found[0].size != size:
                return False
            if found[0].lfs is not None:
                return found[0].lfs.sha256 == sha256
        return hashlib.sha256(self.read(name) or b"").hexdigest() == sha256  # git's own hash is another one

    def send(self, file: Path, name: str, sha256: str) -> None:
        from huggingface_hub import CommitOperationAdd

        with self._errors():
            if not self._made:
                self._hub.create_repo(self._repository, private=True, exist_ok=True)
                self._made = True
            operation = CommitOperationAdd(self._prefix + name, str(file))
            self._hub.preupload_lfs_files(self._repository, additions=[operation], free_memory=False)
        self._pending[name] = operation

    def fetch(self, name: str, file: Path) -> None:
        with self._errors(), TemporaryDirectory(dir=file.parent, prefix=".hub-") as scratch:
            shutil.move(self._download(name, Path(scratch)), file)

    def remove(self, name: str) -> None:
        from huggingface_hub import CommitOperationDelete

        self._pending[name] = CommitOperationDelete(self._prefix + name)

    def finish(self) -> None:
        if self._pending:
            with self._errors():
                operations = [operation for _, operation in sorted(self._pending.items())]
                self._hub.create_commit(self._repository, operations, commit_message="Checkpoint of a Gavel run")
            self._pending.clear()

    def _files(self, folder: str) -> list[Any]:
        from huggingface_hub import RepoFile
        from huggingface_hub.errors import EntryNotFoundError

        tree = self._hub.list_repo_tree(self._repository, folder or None, recursive=True)
        try:
            return [entry for entry in tree if isinstance(entry, RepoFile)]
        except EntryNotFoundError:
            return []

    def _download(self, name: str, folder: Path) -> str:
        return self._hub.hf_hub_download(self._repository, self._prefix + name, local_dir=folder)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (*TRANSPORT_ERRORS, OSError, RuntimeError, ValueError) as error:  # the library's own are such, too
            raise cannot_be_used(
                self.address,
                error,
                "Check the repository's name, that HF_TOKEN (or `hf auth login`) may read and write it, and "
                "HF_ENDPOINT for a Hub that is not Hugging Face's.",
            ) from error
