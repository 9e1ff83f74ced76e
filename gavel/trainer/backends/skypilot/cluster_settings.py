"""What a user chooses of a cluster, and what this machine remembers of one that it started: its key above all.

A record is a file in the user's state directory, readable by the user alone.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_serializer, model_validator

from gavel.base.errors import GavelError
from gavel.base.files import write_atomically
from gavel.trainer.backends.remote.wire import KEY_VARIABLE


class ClusterError(GavelError):
    """A cluster cannot be started, reached or ended."""


class ServerEndedError(ClusterError):
    """A cluster is on, and its server's job has ended."""


_SHORTEST = 6
"""Characters of a value that is blotted out; shorter ones are parts of words."""


def secret_values(secrets: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """By name. Names alone are of environment variables here. Raises `ClusterError` for one that is not set."""
    if isinstance(secrets, str):
        raise ClusterError("secrets is one string", 'Give a list of names: secrets=["HF_TOKEN"]')
    values = {name: os.environ.get(name, "") for name in secrets}
    if isinstance(secrets, Mapping):
        values = dict(cast("Mapping[str, str]", secrets))
    for name, value in values.items():
        if not name.isidentifier():
            raise ClusterError(
                "a secret is not named like an environment variable", "Give names such as HF_TOKEN, not values."
            )
        if name == KEY_VARIABLE:
            raise ClusterError(f"{KEY_VARIABLE} is made for the cluster", "Leave it out of the secrets.")
        if not value:
            raise ClusterError(f"the secret {name} is not set here", f"Set the environment variable {name}.")
    return values


def redacted(text: str, values: Iterable[str]) -> str:
    """The text with stars for every secret value."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, "***")
    return text


PORT = 8090
_ENDS_ONLY = ("k8s", "kubernetes", "slurm", "ssh", "lambda", "runpod")
"""Infrastructure that cannot stop a machine and start it again."""
_LAST_MINUTES = 5
"""Between the server's end and the machine's, at most."""


class ClusterSettings(BaseModel):
    """Machines, and the server of `gavel backend` on the first of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str = Field(default="gavel", max_length=50, pattern=r"^[A-Za-z][A-Za-z0-9-]*$")
    """Its name; a running cluster of this name is used again."""
    accelerators: str | None = "H100:1"
    """GPUs of each node, as SkyPilot names them; None = none."""
    infra: str | None = None
    """Where, as in SkyPilot: aws, gcp/us-central1, k8s/context, slurm. Default: the cheapest place that is set up."""
    image: str | None = None
    """Machine image, or docker:IMAGE."""
    num_nodes: int = Field(default=1, ge=1)
    """Nodes; the processes of all of them learn together."""
    cpus: str | None = None
    """CPUs of each node: 8, or 8+."""
    memory: str | None = None
    """Memory of each node, in GB: 64, or 64+."""
    disk_gb: int | None = Field(default=None, ge=20)
    use_spot: bool = False
    """Spot machines: cheaper, and may be taken away."""
    idle_minutes_to_autostop: int = Field(default=30, ge=2)
    """Minutes without a request or a running step, after which the machines are stopped."""
    down: bool | None = None
    """Deletes idle machines, with the runs on them, instead of stopping them. Default: where they cannot be stopped."""
    engine: Literal["transformers", "vllm"] = "transformers"
    slots: int = Field(default=128, ge=1)
    """Conversations that are sampled at once."""
    max_context: int | None = Field(default=None, ge=16)
    versions: int = Field(default=1, ge=1)
    """Steps whose adapters are served at once."""
    runs: str = "~/gavel-runs"
    """Folder of the runs on the first node."""
    port: int = Field(default=PORT, ge=1, le=65535)
    """The server's port, on the first node's loopback."""
    secrets: tuple[str, ...] = ()
    """Names of the environment variables that are secret."""

    @model_validator(mode="after")
    def _whole_nodes(self) -> Self:
        if self.num_nodes > 1 and self.engine == "vllm" and self.accelerators is None:
            raise ValueError("vllm on several nodes needs accelerators")
        return self

    @property
    def ends_machines(self) -> bool:
        """Whether idle machines are deleted, rather than stopped."""
        if self.down is not None:
            return self.down
        return self.use_spot or (self.infra or "").lower().split("/")[0] in _ENDS_ONLY

    @property
    def last_minutes(self) -> int:
        """Minutes from the server's end until the machines are stopped."""
        return max(1, min(_LAST_MINUTES, self.idle_minutes_to_autostop // 2))

    @property
    def server_idle_minutes(self) -> int:
        """Minutes without work until the server ends itself; with `last_minutes` they are what the user chose."""
        return self.idle_minutes_to_autostop - self.last_minutes

    def machines(self) -> dict[str, object]:
        """What cannot be changed while the cluster runs."""
        return self.model_dump(include={"accelerators", "infra", "image", "num_nodes", "use_spot"})


def cluster_settings(**fields: Any) -> ClusterSettings:
    """Raises `ClusterError` for what cannot be."""
    try:
        return ClusterSettings(**fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "the settings"
        raise ClusterError(f"{name}: {first['msg']}", "gavel cluster up --help lists what there is.") from None


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
        """The records of all clusters that were started from here, by name."""
        found = [cls.find(file.stem) for file in sorted((state_directory() / "clusters").glob("*.json"))]
        return [record for record in found if record is not None]


def _file(cluster: str) -> Path:
    return state_directory() / "clusters" / f"{cluster}.json"
