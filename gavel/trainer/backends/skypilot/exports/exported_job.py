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
    """run.toml or a file of Python, beside which it is started; None = a server."""
    more: tuple[str, ...] = ()
    """Further arguments of the program."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of Python."""
        if self.program is None:
            return backend_arguments(self.settings)
        if PurePath(self.program).suffix == ".py":
            return (self.program, *self.more)
        return ("-m", "gavel", "train", self.program, *self.more)

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
