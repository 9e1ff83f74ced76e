"""An artifact of Weights & Biases as a store: its newest version holds all files, and a push makes a new one.

A version appears whole or not at all, and the server keeps the files' hashes: what an upload that was cut off has sent
is not sent again. WANDB_MODE is for metrics: an artifact is always logged online. What another push added meanwhile is
taken into the next version, so that the newest one never lacks it.
"""

# pyright: reportMissingTypeStubs=false

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from gavel.base.extras import install_line
from gavel.base.files import file_sha256
from gavel.trainer.runs.storage.store import StorageError, cannot_be_used

KEY_VARIABLE = "WANDB_API_KEY"
_START_SECONDS = 120.0
_UPLOAD_SECONDS = 3600


def artifacts_api(entity: str, project: str) -> Any:
    """The SDK's reading side. Raises the SDK's errors."""
    import wandb

    return wandb.Api(overrides={"entity": entity, "project": project}, timeout=60)


def log_artifact(artifact: Any, entity: str, project: str, *, run_id: str, job_type: str, aliases: list[str]) -> None:
    """Uploads a version from the run `run_id`, which another attempt takes up. Raises the SDK's errors."""
    import wandb

    scratch = mkdtemp(prefix="gavel-wandb-")
    settings = wandb.Settings(
        mode="online",
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        init_timeout=_START_SECONDS,
        reinit="create_new",  # a run of the trainer may be open
    )
    try:
        with wandb.init(
            entity=entity, project=project, id=run_id, job_type=job_type, dir=scratch, settings=settings
        ) as run:
            run.log_artifact(artifact, aliases=aliases).wait(timeout=_UPLOAD_SECONDS)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


_TYPE = "model"
_HASH = "sha256"
"""Key of a file's SHA-256 in its entry's extra fields; W&B's own digest is another one."""
_ATTEMPTS = 8


class WandbStore:
    """`wandb://entity/project/name`: the artifact of this name, which the first push makes."""

    def __init__(self, address: str) -> None:
        try:
            import wandb  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise StorageError("wandb:// needs wandb, which is not installed", install_line("train")) from error
        self.address = address.rstrip("/")
        parts = self.address.removeprefix("wandb://").split("/")
        if len(parts) != 3 or not all(parts) or not re.fullmatch(r"[\w.-]+", parts[2], re.ASCII):
            raise StorageError(
                f"{address!r} names no artifact",
                "Give wandb://entity/project/name; the name has letters, digits, '-', '_' and '.'.",
            )
        self._entity, self._project, self._name = parts
        self._opened: tuple[Any] | None = None
        self._sent: dict[str, Path] = {}
        self._removed: set[str] = set()

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._entries() if name.startswith(prefix))

    def read(self, name: str) -> bytes | None:
        if name not in self._entries():
            return None
        with TemporaryDirectory() as scratch:
            file = Path(scratch) / "file"
            self._download(name, file)
            return file.read_bytes()

    def has(self, name: str, sha256: str, size: int) -> bool:
        entry = self._entries().get(name)
        return entry is not None and entry.size == size and entry.extra.get(_HASH) == sha256

    def send(self, file: Path, name: str, sha256: str) -> None:
        """Noted here; all files are uploaded when it is finished."""
        self._removed.discard(name)
        self._sent[name] = file

    def fetch(self, name: str, file: Path) -> None:
        self._download(name, file)

    def remove(self, name: str) -> None:
        self._sent.pop(name, None)
        self._removed.add(name)

    def finish(self) -> None:
        """Logs the new version. A push that another machine finished meanwhile is missed by it, and is added again."""
        if not self._sent and not self._removed:
            return
        with self._errors():
            base, missed = self._newest(), dict[str, Any]()
            for _ in range(_ATTEMPTS):
                self._log(base, missed)
                before, base = _number(base), self._version("latest")
                missed = self._between(before, _number(base))
                if not missed:
                    break
            else:
                raise StorageError(
                    f"{self.address} was written to by others {_ATTEMPTS} times meanwhile", "Push again, one at a time."
                )
        self._opened = (base,)
        self._sent.clear()
        self._removed.clear()

    def _log(self, base: Any, missed: dict[str, Any]) -> None:
        import wandb

        draft: Any = wandb.Artifact(self._name, type=_TYPE) if base is None else base.new_draft()
        for name, entry in missed.items():
            if name not in draft.manifest.entries and name not in self._removed:
                draft.manifest.add_entry(entry)
        for name in self._removed & set(draft.manifest.entries):
            draft.remove(name)
        for name, file in self._sent.items():
            added = draft.add_file(str(file), name, policy="mutable", skip_cache=True, overwrite=True)
            added.extra[_HASH] = file_sha256(Path(added.local_path))  # of the copy: metrics of a live run grow
        run_id = f"push-{self._name}"
        log_artifact(draft, self._entity, self._project, run_id=run_id, job_type="push", aliases=["latest"])

    def _between(self, before: int, now: int) -> dict[str, Any]:
        """Files of the versions after `before` and before `now`."""
        found: dict[str, Any] = {}
        for number in range(before + 1, now):
            if (version := self._version(f"v{number}")) is not None:
                found |= version.new_draft().manifest.entries  # a draft's lack the paths on the machine that sent them
        return found

    def _download(self, name: str, file: Path) -> None:
        with self._errors(), TemporaryDirectory(dir=file.parent, prefix=".wandb-") as scratch:
            shutil.move(self._newest().get_entry(name).download(root=scratch, skip_cache=True), file)

    def _entries(self) -> dict[str, Any]:
        with self._errors():
            newest = self._newest()
            return {} if newest is None else newest.manifest.entries

    def _newest(self) -> Any:
        if self._opened is None:
            self._opened = (self._version("latest"),)
        return self._opened[0]

    def _version(self, alias: str) -> Any:
        """The newest version; None if there is none."""
        api = artifacts_api(self._entity, self._project)
        path = f"{self._entity}/{self._project}/{self._name}:{alias}"
        return api.artifact(path, type=_TYPE) if api.artifact_exists(path, type=_TYPE) else None

    @contextmanager
    def _errors(self) -> Generator[None]:
        from requests.exceptions import RequestException
        from wandb.errors import Error

        if not os.environ.get(KEY_VARIABLE):
            raise StorageError(f"{KEY_VARIABLE} is not set", "Take one from wandb.ai/authorize, and set it in .env.")
        try:
            yield
        except (Error, RequestException, ValueError, KeyError, OSError) as error:
            raise cannot_be_used(
                self.address,
                error,
                f"Check {KEY_VARIABLE} (from wandb.ai/authorize), and that it may use {self._entity}/{self._project}.",
            ) from error


def _number(version: Any) -> int:
    return -1 if version is None else int(version.version.removeprefix("v"))
