"""What a user names as input -> files on disk: `-` is standard input, and a pipe is read once, into a temporary file.

with on_disk([Path("-")]) as inputs:
    inputs.paths            # [Path("/tmp/…/standard input")]
    inputs.told("…")        # a message in the user's names
"""

import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gavel.scenarios.readers.row import RowError

STDIN = Path("-")
_NAME = "standard input"


@dataclass(frozen=True, slots=True)
class Inputs:
    paths: list[Path]
    names: dict[str, str] = field(default_factory=dict[str, str])
    """A temporary file's path -> how the user knows it."""

    def told(self, message: str) -> str:
        for path, name in self.names.items():
            message = message.replace(path, name)
        return message


@contextmanager
def on_disk(named: Sequence[Path]) -> Generator[Inputs]:
    """The files that are named, for as long as the context lasts. Raises `RowError` for one that cannot be read."""
    with tempfile.TemporaryDirectory(prefix="gavel-") as directory:
        inputs = Inputs([])
        for number, path in enumerate(named):
            if path != STDIN and (not path.exists() or path.is_file() or path.is_dir()):
                inputs.paths.append(path)
                continue
            name = _NAME if path == STDIN else str(path)
            copy = Path(directory) / str(number)
            try:
                with copy.open("wb") as stream:
                    if path == STDIN:
                        shutil.copyfileobj(sys.stdin.buffer, stream)
                    else:
                        with path.open("rb") as source:
                            shutil.copyfileobj(source, stream)
            except OSError as error:
                raise RowError(f"{name} cannot be read: {error.strerror or error}", "Check the path.") from error
            inputs.paths.append(copy)
            inputs.names[str(copy)] = name
        yield inputs
