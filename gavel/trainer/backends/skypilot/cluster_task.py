"""What a cluster is to do, as SkyPilot's YAML says it: machines, setup, and the run script. It holds no secret."""

from dataclasses import dataclass
from typing import Any

from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
from gavel.trainer.backends.skypilot.own_package import OwnPackage
from gavel.trainer.backends.skypilot.scripts import run_script, setup_script


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
