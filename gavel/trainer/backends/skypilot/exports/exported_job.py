"""What is exported: one program on the nodes of a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from gavel.trainer.backends.remote.wire import KEY_VARIABLE
from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
from gavel.trainer.backends.skypilot.cluster_task import backend_arguments
from gavel.trainer.backends.skypilot.own_package import OwnPackage


@dataclass(frozen=True, slots=True)
class ExportedJob:
    """A server of `gavel backend`, or a program that trains by itself."""

    settings: ClusterSettings
    package: OwnPackage
    program: str | None = None
    """A file of Python, or what `gavel train` takes: run.toml, a shipped scenario, file.py:variable. It is started
    beside its files. None = a server."""
    more: tuple[str, ...] = ()
    """Further arguments of the program, or of `gavel train`."""
    scenario_file: str | None = None
    """That run.toml names."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of Python."""
        if self.program is None:
            return backend_arguments(self.settings)
        if self.is_train_command:
            return ("-m", "gavel", "train", self.program, *self.more)
        return (self.program, *self.more)

    @property
    def is_train_command(self) -> bool:
        """Whether `gavel train` runs it."""
        return self.program is not None and PurePath(self.program).suffix != ".py"

    @property
    def files(self) -> tuple[str, ...]:
        """What must be where it is started."""
        file = (self.program or "").partition(":")[0]
        own = (file,) if file.endswith((".py", ".toml")) else ()
        return (*own, *((self.scenario_file,) if self.scenario_file else ()))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables that must be set where it runs."""
        own = (KEY_VARIABLE,) if self.program is None else ()
        return (*own, *self.settings.secrets)

    @property
    def gpus(self) -> int:
        """Of each node."""
        _, _, count = (self.settings.accelerators or "none:0").partition(":")
        return int(float(count or 1))


def commented(lines: Sequence[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)
