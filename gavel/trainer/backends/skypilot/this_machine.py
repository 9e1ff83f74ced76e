"""This machine as the cluster: the scripts of the task, run here as SkyPilot runs them on its nodes.

For trying a cluster's code without one: `gavel demo --backend sky-local`. Gavel is not installed anew: the run script
uses this interpreter. Nodes are processes on this machine's loopback.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gavel.trainer.backends.skypilot.cluster import (
    ClusterError,
    ClusterRecord,
    ClusterSettings,
    ClusterTask,
    state_directory,
)
from gavel.trainer.backends.skypilot.sky_host import (
    JobState,
    Line,
    Offer,
    Say,
    State,
    Submitted,
    free_port,
)

_END_SECONDS = 120.0
_LOOK_SECONDS = 0.1


class _Here:
    """The port itself."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    async def close(self) -> None: ...


class ThisMachine:
    """Runs the run script of one node for each node, with what SkyPilot tells its nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[subprocess.Popen[bytes]]] = {}

    def port(self, settings: ClusterSettings) -> int:
        return free_port()

    async def offer(self, task: ClusterTask) -> Offer:
        nodes = task.settings.num_nodes
        return Offer((f"{nodes} node{'s' * (nodes > 1)} on this machine",), 0.0)

    async def submit(self, task: ClusterTask, secrets: Mapping[str, str], say: Say) -> Submitted:
        settings = task.settings
        log = _log(settings.cluster)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        addresses = "\n".join(["127.0.0.1"] * settings.num_nodes)
        given = {
            **os.environ,
            "GAVEL_PYTHON": sys.executable,
            "GAVEL_MASTER_PORT": str(free_port()),
            "SKYPILOT_NUM_NODES": str(settings.num_nodes),
            "SKYPILOT_NODE_IPS": addresses,
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
            **secrets,
        }
        script = str(task.config()["run"])
        log.write_bytes(b"")
        nodes = [_node(script, {**given, "SKYPILOT_NODE_RANK": str(rank)}, log) for rank in range(settings.num_nodes)]
        self._nodes[settings.cluster] = nodes
        say(f"{settings.cluster} runs on this machine, process {nodes[0].pid}; its log is {log}")
        return Submitted(job=nodes[0].pid, process=nodes[0].pid)

    async def state(self, cluster: str) -> State:
        record = ClusterRecord.find(cluster)
        return "up" if record is not None and record.process and self._runs(cluster, record.process) else "absent"

    async def job_state(self, cluster: str, job: int | None) -> JobState:
        record = ClusterRecord.find(cluster)
        process = job or (record.process if record else None)
        return "running" if process and self._runs(cluster, process) else "ended"

    def follow(self, cluster: str, job: int | None, say: Say, *, until_end: bool = True) -> Callable[[], None]:
        ended = threading.Event()

        def run() -> None:
            with _log(cluster).open(encoding="utf-8", errors="replace") as stream:
                while not ended.is_set():
                    if line := stream.readline():
                        say(line.rstrip())
                    elif not until_end:
                        return
                    else:
                        time.sleep(_LOOK_SECONDS)

        thread = threading.Thread(target=run, daemon=True, name="gavel-cluster-log")
        thread.start()

        def end() -> None:
            if until_end:
                ended.set()
            thread.join(_END_SECONDS)

        return end

    async def line(self, cluster: str, port: int) -> Line:
        return _Here(port)

    async def down(self, cluster: str) -> None:
        record = ClusterRecord.find(cluster)
        if record is not None and record.process is not None:
            await asyncio.to_thread(self._end, cluster, record.process)
            _log(cluster).unlink(missing_ok=True)

    def _end(self, cluster: str, process: int) -> None:
        """SIGTERM, so that a step in progress is finished; SIGKILL after the deadline. Raises `ClusterError`."""
        deadline = time.monotonic() + _END_SECONDS
        others = [node.pid for node in self._nodes.pop(cluster, ())[1:]]
        for number, until in ((signal.SIGTERM, deadline), (signal.SIGKILL, deadline + _END_SECONDS)):
            if not self._runs(cluster, process):
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, number)
            while time.monotonic() < until and self._runs(cluster, process):
                time.sleep(_LOOK_SECONDS)
        else:
            raise ClusterError(f"process {process} does not end", f"Try: kill -9 {process}")
        for other in others:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(other, signal.SIGKILL)

    def _runs(self, cluster: str, process: int) -> bool:
        for node in self._nodes.get(cluster, ()):
            node.poll()  # or it stays as a zombie
        try:
            return os.getsid(process) == process and not _zombie(process)
        except ProcessLookupError:
            return False


def _node(script: str, environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as out:
        return subprocess.Popen(
            ["bash", "-c", script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C finishes a step first, which needs it
        )


def _zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:  # no /proc: macOS
        return False


def _log(cluster: str) -> Path:
    return state_directory() / "clusters" / f"{cluster}.log"
