"""What this machine remembers of a cluster that it started: its key above all, so that it can be reached again.

A file for each cluster in the user's state directory, readable by the user alone.
"""

import json
import os
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_serializer

from gavel.base.files import write_atomically
from gavel.trainer.backends.skypilot.cluster_settings import ClusterError


def state_directory() -> Path:
    """GAVEL_STATE, else the user's state directory."""
    if given := os.environ.get("GAVEL_STATE"):
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gavel"


class ClusterRecord(BaseModel):
    """A cluster that was started from here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    cluster: str
    key: SecretStr
    port: int
    machines: dict[str, Any] = Field(default_factory=dict)
    """What was asked for, as `ClusterSettings.machines` gives it."""
    job: int | None = None
    """Number of the server's job there; None while the cluster is started."""
    usd_per_hour: float | None = None
    """As it was told before the launch; None where it is not known."""
    idle_minutes: int = 0
    ends_machines: bool = False
    process: int | None = None
    """Process id, of a cluster on this machine."""

    @field_serializer("key", when_used="json")
    def _plain(self, key: SecretStr) -> str:
        return key.get_secret_value()

    def save(self) -> None:
        """Writes it for the user alone."""
        file = _file(self.cluster)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(file, self.model_dump_json(indent=1), mode=0o600)

    def delete(self) -> None:
        _file(self.cluster).unlink(missing_ok=True)

    @classmethod
    def find(cls, cluster: str) -> Self | None:
        """None for a cluster that was not started from here. Raises `ClusterError` for a file that cannot be read."""
        file = _file(cluster)
        try:
            return cls.model_validate(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            kind = "is not what Gavel wrote" if isinstance(error, ValidationError | ValueError) else "cannot be read"
            raise ClusterError(
                f"{file} {kind}", f"Delete it. Then `gavel cluster down {cluster}` ends the cluster."
            ) from None  # what it holds is secret

    @classmethod
    def all(cls) -> list[Self]:
        """Of all clusters that were started from here, by name."""
        found = [cls.find(file.stem) for file in sorted((state_directory() / "clusters").glob("*.json"))]
        return [record for record in found if record is not None]


def _file(cluster: str) -> Path:
    return state_directory() / "clusters" / f"{cluster}.json"
