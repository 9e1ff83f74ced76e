"""Adapters that clients sent from their own machines: what a run begins with, or is compared with."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.base.files import new_folder
from gavel.trainer.backends.remote.wire import SentAdapter
from gavel.trainer.backends.run_start import ORIGIN
from gavel.trainer.backends.server.uploads import Uploads
from gavel.trainer.policy.adapter_file import FILES
from gavel.trainer.policy.reference import kept_reference
from gavel.trainer.runs.file_hash import file_sha256
from gavel.trainer.runs.named_checkpoint import NamedCheckpointError, find_checkpoint

_PREFIX = "adapter-"


class SentAdapterError(GavelError):
    """An adapter is not what was announced, or is another one than the server's of that name."""


class SentAdapters:
    """Puts them where a `LocalBackend` finds them. Each is copied into its run, so the uploads go."""

    def __init__(self, root: Path, uploads: Uploads) -> None:
        """`root`: of the runs. Removes what a killed server left."""
        self._root = root
        self._own = root / ".backend"
        self._uploads = uploads
        for left in self._own.glob(f"{_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)

    @contextlib.contextmanager
    def start(self, sent: SentAdapter) -> Generator[Path]:
        """A directory with the adapter, for a run to begin with, while the block runs.

        Raises `UploadMissingError`, and `SentAdapterError` where this machine has another run of that name.
        """
        self._check_name(sent)
        with tempfile.TemporaryDirectory(dir=self._own, prefix=_PREFIX) as name:
            self._write(sent, Path(name))
            Path(name, ORIGIN).write_text(sent.model_dump_json(exclude={"files"}), encoding="utf-8")
            yield Path(name)
        self._forget(sent)

    def keep_reference(self, sent: SentAdapter, run: Path) -> None:
        """Puts the adapter where `run` keeps the reference of this name, unless it has one. As of `start`."""
        kept = kept_reference(run, Path(sent.named))
        if kept.is_dir():
            return
        with new_folder(kept) as unfinished:
            self._write(sent, unfinished)
        self._forget(sent)

    def _write(self, sent: SentAdapter, directory: Path) -> None:
        if not sent.files.keys() <= set(FILES):
            raise SentAdapterError(f"an adapter has no file {', '.join(sent.files)}", f"It has {' and '.join(FILES)}.")
        for name, sha256 in sent.files.items():
            shutil.copyfile(self._uploads.found(sha256), directory / name)

    def _forget(self, sent: SentAdapter) -> None:
        for sha256 in sent.files.values():
            self._uploads.remove(sha256)

    def _check_name(self, sent: SentAdapter) -> None:
        try:
            there = find_checkpoint(sent.named, self._root)
        except NamedCheckpointError:
            return
        if any(file_sha256(there / name) != sha256 for name, sha256 in sent.files.items() if (there / name).is_file()):
            raise SentAdapterError(
                f"both machines have a checkpoint {sent.named!r}, and they are not the same",
                f"Name the client's by its directory: {json.dumps(sent.directory)}",
            )
