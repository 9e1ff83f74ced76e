"""Who starts a cluster: SkyPilot, or this machine in its place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
from gavel.trainer.backends.skypilot.cluster_task import ClusterTask

Say = Callable[[str], None]
"""Takes a line of a log."""
State = Literal["absent", "stopped", "starting", "up", "stopping"]
JobState = Literal["waiting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a cluster will be, and cost."""

    lines: tuple[str, ...] = ()
    """For people."""
    usd_per_hour: float | None = None
    """All nodes together; None where it is not known."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster that exists."""

    cluster: str
    state: State
    resources: str = ""
    autostop: str = ""
    """In words."""
    usd_per_hour: float | None = None
    usd_so_far: float | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The server's job on a cluster."""

    job: int
    process: int | None = None
    """Process id, on this machine."""


def idle_words(minutes: int, ends_machines: bool) -> str:
    """What becomes of idle machines."""
    return f"{'deleted' if ends_machines else 'stopped'} after {minutes} min"


class Line(Protocol):
    """A way to a port of the cluster's first node."""

    url: str

    async def close(self) -> None: ...


class ClusterHost(Protocol):
    """Every method may raise a `ClusterError`, and ends by a deadline."""

    def port(self, settings: ClusterSettings) -> int:
        """Of the server, on the first node's loopback."""
        ...

    async def offer(self, task: ClusterTask) -> Offer:
        """What the task's machines would be and cost; nothing is started."""
        ...

    async def submit(self, task: ClusterTask, secrets: Mapping[str, str], say: Say) -> Submitted:
        """Starts the cluster unless it is up, and the task's job on it; `say` is told what happens."""
        ...

    async def state(self, cluster: str) -> State: ...

    async def job_state(self, cluster: str, job: int | None) -> JobState:
        """Of that job, or of the newest one."""
        ...

    def follow(self, cluster: str, job: int | None, say: Say, *, until_end: bool = True) -> Callable[[], None]:
        """Tells `say` the lines of the job's log from now on, in a thread; what is returned ends that."""
        ...

    async def line(self, cluster: str, port: int) -> Line: ...

    async def statuses(self) -> list[ClusterStatus]:
        """All clusters that are there, in the clouds' own words and as they are now."""
        ...

    async def down(self, cluster: str) -> None:
        """Ends the cluster and its machines; does nothing for one that is not there."""
        ...
