"""A draft in progress on disk: what was seen of the server, and every task with its attempts.

It is written whole after every batch and every checked task, so an interrupted draft goes on from there.
"""

import json
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from gavel.base.files import write_atomically
from gavel.judge.errors import JudgeError
from gavel.judge.task_drafts.drafted_task import DraftedTask


class DraftRecord(BaseModel):
    address: str
    seen: str | None = None
    """What was met by looking around; None = nobody has looked yet."""
    tasks: list[DraftedTask] = Field(default_factory=list[DraftedTask])
    unusable: int = 0
    """Tasks that could not be read."""

    @property
    def used(self) -> list[DraftedTask]:
        """Those that nothing speaks against."""
        return [task for task in self.tasks if task.left_out is None]

    def save(self, path: Path) -> None:
        """Raises `JudgeError` when it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False))
        except OSError as error:
            raise JudgeError(f"{path} cannot be written: {error.strerror}", "Make room there.") from error

    @classmethod
    def read(cls, path: Path, address: str) -> "DraftRecord":
        """The draft in the file, or a new one. Raises `JudgeError` for one of another server."""
        if not path.exists():
            return cls(address=address)
        try:
            record = cls.model_validate_json(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise JudgeError(f"{path} is no draft that can go on.", "Move it away to begin again.") from error
        if record.address != address:
            raise JudgeError(
                f"{path} is a draft for {record.address}, not for {address}.", "Choose another name, or move it away."
            )
        return record
