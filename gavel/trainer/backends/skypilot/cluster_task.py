"""What a cluster is to do, as SkyPilot's YAML says it: machines, setup, and the run script. It holds no secret.

The two scripts of a cluster: `setup` installs Gavel on a node, and `run` runs Python with it there.

The run script needs SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS and SKYPILOT_NUM_GPUS_PER_NODE where
there are several nodes or GPUs, whoever starts it: SkyPilot, Slurm, Kubernetes or a test. Then torchrun starts a
process for each GPU; one process is started plainly. GAVEL_PYTHON is another interpreter than that of the setup.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
from gavel.trainer.backends.skypilot.own_package import OwnPackage


def setup_script(package: OwnPackage, more: str = "", directory: str | None = None) -> str:
    """Installs Gavel on this node; the same package again costs nothing. `more`: commands that follow.

    `directory`: of the package's wheel, as a shell there writes it.
    """
    given = {
        "gavel_identity": shlex.quote(package.identity),
        "gavel_package": package.shell_word(extras=False, directory=directory),
        "gavel_requirement": package.shell_word(extras=True, directory=directory),
    }
    variables = "".join(f"{name}={value}\n" for name, value in given.items())
    return variables + _text("setup.sh") + (more.rstrip() + "\n" if more.strip() else "")


def run_script(arguments: Sequence[str]) -> str:
    """Runs Python with these arguments on this node."""
    return f"set -- {shell_words(arguments)}\n{run_text()}"


def run_text() -> str:
    """The run script; its own arguments are Python's."""
    return _text("run.sh")


def shell_words(arguments: Sequence[str]) -> str:
    """The arguments as words of a shell; one that begins with ~/ is in the home directory there."""
    return " ".join(
        '"$HOME"/' + shlex.quote(argument[2:]) if argument.startswith("~/") else shlex.quote(argument)
        for argument in arguments
    )


def _text(name: str) -> str:
    return (files("gavel.trainer.backends.skypilot") / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """One task of SkyPilot."""

    settings: ClusterSettings
    package: OwnPackage
    arguments: tuple[str, ...]
    """Of Python, on each node."""

    def config(self) -> dict[str, Any]:
        """For `sky.Task.from_yaml_config`; secrets are added to the task itself."""
        settings = self.settings
        mounts = dict(settings.file_mounts)
        if self.package.wheel is not None:
            mounts[self.package.wheel_there] = str(self.package.wheel)
        config: dict[str, Any] = {
            "name": settings.cluster,
            "num_nodes": settings.num_nodes,
            "resources": self.resources(),
            "setup": setup_script(self.package, settings.setup),
            "run": run_script(self.arguments),
        }
        return config | ({"file_mounts": mounts} if mounts else {})

    def resources(self) -> dict[str, Any]:
        """`wait_for: jobs`: an open tunnel is no work, and the server, which is a job, ends itself when it is idle."""
        settings = self.settings
        given = {
            "infra": settings.infra,
            "accelerators": settings.accelerators,
            "image_id": settings.image,
            "cpus": settings.cpus,
            "memory": settings.memory,
            "disk_size": settings.disk_gb,
        }
        autostop = {"idle_minutes": settings.last_minutes, "down": settings.ends_machines, "wait_for": "jobs"}
        chosen = {name: value for name, value in given.items() if value is not None}
        return chosen | ({"use_spot": True} if settings.use_spot else {}) | {"autostop": autostop}


def backend_task(settings: ClusterSettings, package: OwnPackage) -> ClusterTask:
    """A task that serves: `gavel backend` on the first node, which ends when it is idle."""
    return ClusterTask(settings, package, backend_arguments(settings))


def backend_arguments(settings: ClusterSettings) -> tuple[str, ...]:
    """Of Python, for `gavel backend` with these settings."""
    options: dict[str, object] = {
        "port": settings.port,
        "runs": settings.runs,
        "engine": settings.engine,
        "slots": settings.slots,
        "max-context": settings.max_context,
        "versions": settings.versions,
        "idle-minutes": settings.server_idle_minutes,
    }
    given = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
    return ("-m", "gavel", "backend", *given)
