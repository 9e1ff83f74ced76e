"""An adapter as a vLLM server has it: under a name that is never used twice, read from a directory."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True, eq=False)
class ServedAdapter:
    """An adapter that is loaded at the server; used by the engine's event loop only."""

    name: str
    version: int
    directory: Path
    users: int = 0
    """Requests in flight."""
