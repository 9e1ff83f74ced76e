"""What a user chooses of a cluster."""

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gavel.base.errors import GavelError
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


def _plain_name(name: str) -> str:
    if (
        not name
        or not name[0].isalpha()
        or not all(part.isascii() and (part.isalnum() or part == "-") for part in name)
    ):
        raise ValueError("a letter first, then letters, digits and hyphens")
    return name


ClusterName = Annotated[str, Field(max_length=50), AfterValidator(_plain_name)]


class ClusterSettings(BaseModel):
    """Machines, and the server of `gavel backend` on the first of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: ClusterName = "gavel"
    """Its name; a running cluster of this name is used again."""
    accelerators: str | None = "H100:1"
    """Of each node, as SkyPilot names them; None = none."""
    infra: str | None = None
    """Where, as in SkyPilot: aws, gcp/us-central1, k8s/context, slurm. Default: the cheapest place that is set up."""
    image: str | None = None
    """Machine image, or docker:IMAGE."""
    num_nodes: int = Field(default=1, ge=1)
    """Nodes; the processes of all of them learn together."""
    cpus: str | None = None
    """Of each node: 8, or 8+."""
    memory: str | None = None
    """Of each node, in GB: 64, or 64+."""
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
    """Of the server, on the first node's loopback."""
    setup: str = ""
    """Commands after the installation of Gavel, on every node."""
    file_mounts: dict[str, str] = Field(default_factory=dict)
    """Paths there, and files, folders or buckets that are put there."""
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
