"""A cluster: what a user chooses of it, what this machine remembers of one that it started, and what it is to do.

A record holds the cluster's key above all; it is a file in the user's state directory, readable by the user alone.

The task is said as SkyPilot's YAML says it: machines, the setup of the Gavel that runs here, the run script. The run
script needs SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS and SKYPILOT_NUM_GPUS_PER_NODE where there are
several nodes or GPUs. Then torchrun starts a process for each GPU; one process is started plainly. GAVEL_PYTHON is
another interpreter than that of the setup. No script holds a secret.
"""

import hashlib
import os
import shlex
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer, model_validator

from gavel.base.errors import GavelError
from gavel.base.files import replacing, write_atomically
from gavel.trainer.backends.remote.wire import KEY_VARIABLE
from gavel.trainer.config import Settings


class ClusterError(GavelError):
    """A cluster cannot be started, reached or ended."""


class ServerEndedError(ClusterError):
    """A cluster is on, and its server's job has ended."""


_SHORTEST = 6
"""Characters of a value that is blotted out; shorter ones are parts of words."""


def read_secrets(secrets: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
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
"""Max minutes between the server's end and the machine's."""


class ClusterSettings(Settings):
    """Machines, and the server of `gavel backend` on the first of them."""

    cluster: str = Field(default="gavel", max_length=50, pattern=r"^[A-Za-z][A-Za-z0-9-]*$")
    """Its name; a running cluster of this name is used again."""
    accelerators: str | None = "H100:1"
    """GPUs of each node, as SkyPilot names them: H100:1, A100-80GB:8; none for none."""
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
    """GB of disk of each node."""
    use_spot: bool = False
    """Spot machines: cheaper, and may be taken away."""
    idle_minutes_to_autostop: int = Field(default=30, ge=2)
    """Minutes without a request or a running step, after which the machines are stopped."""
    down: bool | None = None
    """Deletes idle machines, with the runs on them, instead of stopping them. Default: where they cannot be stopped."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What samples the rollouts there."""
    slots: int = Field(default=128, ge=1)
    """Conversations that are sampled at once."""
    max_context: int | None = Field(default=None, ge=16)
    """Tokens of a conversation. Default: the model's own."""
    versions: int = Field(default=1, ge=1)
    """Steps whose adapters are served at once."""
    runs: str = "~/gavel-runs"
    """Folder of the runs on the first node."""
    port: int = Field(default=PORT, ge=1, le=65535)
    """The server's port, on the first node's loopback."""

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

    def machines(self) -> dict[str, object]:
        """The settings that are fixed while the cluster runs."""
        return self.model_dump(include={"accelerators", "infra", "image", "num_nodes", "use_spot"})


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
    """The requested machines, as `ClusterSettings.machines` gives them."""
    job: int | None = None
    """Number of the server's job there, on this machine of its process; None while the cluster is started."""
    is_here: bool = False
    """Whether the cluster is this machine."""

    @field_serializer("key", when_used="json")
    def _plain(self, key: SecretStr) -> str:
        return key.get_secret_value()

    def save(self) -> None:
        """Writes it for the user alone."""
        file = _file(self.cluster)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(file, self.model_dump_json(indent=1), mode=0o600)

    @staticmethod
    def delete(cluster: str) -> None:
        _file(cluster).unlink(missing_ok=True)

    @classmethod
    def find(cls, cluster: str) -> Self | None:
        """None for a cluster that was not started from here. Raises `ClusterError` for a file that cannot be read."""
        file = _file(cluster)
        try:
            return cls.model_validate_json(file.read_bytes()) if file.exists() else None
        except (OSError, ValueError):
            raise ClusterError(
                f"{file} cannot be read, or is not what Gavel wrote",
                f"Delete it. Then `gavel cluster down {cluster}` ends the cluster.",
            ) from None  # what it holds is secret

    @classmethod
    def all(cls) -> list[Self]:
        """The records of all clusters that were started from here, by name."""
        found = [cls.find(file.stem) for file in sorted((state_directory() / "clusters").glob("*.json"))]
        return [record for record in found if record is not None]


def _file(cluster: str) -> Path:
    return state_directory() / "clusters" / f"{cluster}.json"


def pack_wheel(cache: Path) -> Path:
    """A wheel of the Gavel that runs here, of its files as they are now; the same files are packed once."""
    package, found = Path(__file__).resolve().parents[3], distribution("gavel-rl")
    paths = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    content = {f"gavel/{path.relative_to(package).as_posix()}": path.read_bytes() for path in paths}
    info = f"gavel_rl-{found.version}.dist-info"
    content |= {f"{info}/{name}": (found.read_text(name) or "").encode() for name in ("METADATA", "entry_points.txt")}
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"]).encode()
    digest = hashlib.sha256()
    for name, each in content.items():
        digest.update(f"{name}\0{len(each)}\0".encode() + each)
    wheel = cache / digest.hexdigest()[:16] / f"gavel_rl-{found.version}-py3-none-any.whl"
    if not wheel.is_file():
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with replacing(wheel) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, each in content.items():
                packed.writestr(name, each)
    return wheel


def _place_there(wheel: Path) -> str:
    """Where the wheel is on a node: another path for other code."""
    return f"~/.gavel/packages/{wheel.parent.name}/{wheel.name}"


def setup_script(wheel: Path) -> str:
    """Installs the wheel on this node; the same one again costs nothing."""
    return f"gavel_wheel={_shell_word(_place_there(wheel))}\n{_text('setup.sh')}"


def run_script(arguments: Sequence[str]) -> str:
    """Runs Python with these arguments on this node. An argument that begins with ~/ is in the home directory there."""
    return f"set -- {' '.join(map(_shell_word, arguments))}\n{_text('run.sh')}"


def _shell_word(text: str) -> str:
    return '"$HOME"/' + shlex.quote(text[2:]) if text.startswith("~/") else shlex.quote(text)


def _text(name: str) -> str:
    return (files("gavel.trainer.backends.skypilot") / name).read_text(encoding="utf-8")


def task_config(settings: ClusterSettings, wheel: Path) -> dict[str, Any]:
    """One task of SkyPilot, for `sky.Task.from_yaml_config`: `gavel backend` on the nodes, which ends itself when it is
    idle. Secrets are added to the task itself.

    `wait_for: jobs`: an open tunnel is no work, and the server, which is a job, ends itself when it is idle.
    """
    last_minutes = max(1, min(_LAST_MINUTES, settings.idle_minutes_to_autostop // 2))
    resources = {
        "infra": settings.infra,
        "accelerators": settings.accelerators,
        "image_id": settings.image,
        "cpus": settings.cpus,
        "memory": settings.memory,
        "disk_size": settings.disk_gb,
        "use_spot": settings.use_spot or None,
        "autostop": {"idle_minutes": last_minutes, "down": settings.ends_machines, "wait_for": "jobs"},
    }
    options: dict[str, object] = {
        "port": settings.port,
        "runs": settings.runs,
        "engine": settings.engine,
        "slots": settings.slots,
        "max-context": settings.max_context,
        "versions": settings.versions,
        "idle-minutes": settings.idle_minutes_to_autostop - last_minutes,
    }
    given = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
    return {
        "name": settings.cluster,
        "num_nodes": settings.num_nodes,
        "resources": {name: value for name, value in resources.items() if value is not None},
        "setup": setup_script(wheel),
        "run": run_script(["-m", "gavel", "backend", *given]),
        "file_mounts": {_place_there(wheel): str(wheel)},
    }
