"""Cluster hosts: SkyPilot, or this machine in its place, start a cluster and connect to it.

SkyPilot's SDK makes a request of each call, whose id is waited for; a cluster's server is reached through an ssh
tunnel. `ThisMachine` runs the scripts of the task here as SkyPilot runs them on its nodes, for trying a cluster's code
without one: `gavel demo --backend sky-local`. Gavel is not installed anew then: the run script uses this interpreter.
Nodes are processes on this machine's loopback.
"""

import asyncio
import concurrent.futures
import contextlib
import io
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar, cast

from gavel.base.extras import install_line
from gavel.trainer.backends.skypilot.cluster import (
    ClusterError,
    ClusterRecord,
    ClusterSettings,
    ClusterTask,
    redacted,
    state_directory,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
Say = Callable[[str], None]
"""Takes a line of a log."""
State = Literal["absent", "stopped", "starting", "up", "stopping"]
JobState = Literal["waiting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Machines and price of a cluster that is not started yet."""

    lines: tuple[str, ...] = ()
    """Description for users."""
    usd_per_hour: float | None = None
    """Price of all nodes; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The server's job on a cluster."""

    job: int
    process: int | None = None
    """Process id, on this machine."""


class Line(Protocol):
    """A way to a port of the cluster's first node."""

    url: str

    async def close(self) -> None: ...


class ClusterHost(Protocol):
    """Every method may raise a `ClusterError`, and ends by a deadline."""

    def port(self, settings: ClusterSettings) -> int:
        """The server's port, on the first node's loopback."""
        ...

    async def offer(self, task: ClusterTask) -> Offer:
        """The machines and price for the task; starts nothing."""
        ...

    async def submit(self, task: ClusterTask, secrets: Mapping[str, str], say: Say) -> Submitted:
        """Starts the cluster unless it is up, and the task's job on it; `say` is told what happens."""
        ...

    async def state(self, cluster: str) -> State: ...

    async def job_state(self, cluster: str, job: int | None) -> JobState:
        """The state of that job, or of the newest one."""
        ...

    def follow(self, cluster: str, job: int | None, say: Say, *, until_end: bool = True) -> Callable[[], None]:
        """Tells `say` the lines of the job's log from now on, in a thread; what is returned ends that."""
        ...

    async def line(self, cluster: str, port: int) -> Line: ...

    async def down(self, cluster: str) -> None:
        """Ends the cluster and its machines; does nothing for one that is not there."""
        ...


_ALIVE_SECONDS = 15
"""Seconds between keep-alives; after three missed ones ssh ends."""
_CONNECT_SECONDS = 20
_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 30.0
"""Seconds until ssh is started again."""
_END_SECONDS = 5.0


class SshTunnel:
    """`url` leads to the port for as long as the tunnel is open and ssh gets through."""

    def __init__(self, name: str, port: int) -> None:
        """`name`: of the node in ssh's own configuration. Raises `ClusterError` without ssh."""
        if shutil.which("ssh") is None:
            raise ClusterError("there is no ssh here", "Install it (Debian: apt install openssh-client).")
        self._name = name
        self._port = port
        self._local = free_port()
        self.url = f"http://127.0.0.1:{self._local}"
        self._kept = asyncio.create_task(self._keep())

    async def close(self) -> None:
        self._kept.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._kept

    async def _keep(self) -> None:
        wait = _SHORTEST_WAIT
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            said = await self._run()
            wait = _SHORTEST_WAIT if loop.time() - began > _LONGEST_WAIT else min(2 * wait, _LONGEST_WAIT)
            logger.info("ssh to %s ended: %s; again in %.0f s", self._name, said or "it said nothing", wait)
            await asyncio.sleep(wait)

    async def _run(self) -> str:
        """Runs ssh until it ends; returns its last words."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(_CONNECT_SECONDS),
            "ExitOnForwardFailure": "yes",
            "ServerAliveInterval": str(_ALIVE_SECONDS),
            "ServerAliveCountMax": "3",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        forward = f"127.0.0.1:{self._local}:127.0.0.1:{self._port}"
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-N", *given, "-L", forward, "--", self._name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C finishes a step first, which needs the tunnel
        )
        try:
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _END_SECONDS)
            if process.returncode is None:
                process.kill()
        return said.decode(errors="replace").strip().rpartition("\n")[2]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def run_in_background(call: Callable[[], T], seconds: float) -> T:
    """Returns the result of `call`, which runs in a daemon thread. Raises `TimeoutError`; the call is not stopped then,
    but its result is dropped."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            value = call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(value)

    threading.Thread(target=run, daemon=True, name="gavel-cluster").start()
    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(done)), seconds)


def _followed(run: Callable[[threading.Event], None], seconds: float) -> Callable[[], None]:
    """Runs it in a thread; what is returned waits for its end for so many seconds, and then tells it to end."""
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,), daemon=True, name="gavel-cluster-log")
    thread.start()

    def end() -> None:
        thread.join(seconds)
        ended.set()

    return end


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: str) -> str:
    """The text without a terminal's escapes."""
    return _ESCAPES.sub("", text)


class LineWriter(io.TextIOBase):
    """A stream whose whole lines are told."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, self._begun = (self._begun + plain(text).replace("\r", "\n")).split("\n")
        for line in lines:
            if line.strip():
                self._say(line.rstrip())
        return len(text)

    def close(self) -> None:
        if self._begun.strip():
            self._say(self._begun.rstrip())
        self._begun = ""
        super().close()


_ASK_SECONDS = 300.0
"""Timeout of a request; the first one starts SkyPilot's API server."""
_LAUNCH_SECONDS = 3600.0
_DOWN_SECONDS = 1200.0
_STATES: dict[str, State] = {"UP": "up", "STOPPED": "stopped", "AUTOSTOPPING": "stopping"}
"""Others are on the way up."""
_WAITING = ("INIT", "PENDING", "SETTING_UP")
_CHOSEN = re.compile(r"(\d+(?:\.\d+)?)\s+✔")
_WRITE_SSH_CONFIG = "import sys; from sky.cli import cli; sys.exit(cli())"


class SkyHost:
    """SkyPilot, through its API server. Raises `ClusterError` where SkyPilot is not installed."""

    def __init__(self, *, launch_seconds: float = _LAUNCH_SECONDS) -> None:
        self._sky = _skypilot()
        self._launch_seconds = launch_seconds

    def port(self, settings: ClusterSettings) -> int:
        return settings.port

    async def offer(self, task: ClusterTask) -> Offer:
        sky, lines = self._sky, list[str]()

        def ask() -> None:
            with sky.Dag() as dag:
                dag.add(self._task(task, {}))
            sky.stream_and_get(sky.optimize(dag), output_stream=LineWriter(lines.append))

        await self._ask(ask, _ASK_SECONDS, "SkyPilot finds no such machines")
        chosen = [found for line in lines if (found := _CHOSEN.search(line))]
        return Offer(tuple(lines), float(chosen[-1][1]) if chosen else None)

    async def submit(self, task: ClusterTask, secrets: Mapping[str, str], say: Say) -> Submitted:
        sky, name, begun = self._sky, task.settings.cluster, list[Any]()

        def launch() -> int | None:
            begun.append(sky.launch(self._task(task, secrets), cluster_name=name))
            job, _ = sky.stream_and_get(begun[0], output_stream=LineWriter(say))
            return cast("int | None", job)

        try:
            job = await self._ask(launch, self._launch_seconds, f"the cluster {name} did not start", secrets.values())
        except (asyncio.CancelledError, TimeoutError, ClusterError) as error:
            if begun and not isinstance(error, ClusterError):
                with contextlib.suppress(ClusterError):
                    await self._ask(lambda: sky.api_cancel(begun[0]), _ASK_SECONDS, "the launch was not cancelled")
            raise
        if job is None:
            raise ClusterError(f"the cluster {name} is up, and the server was not started", "Launch it again.")
        return Submitted(job)

    async def state(self, cluster: str) -> State:
        sky = self._sky
        ask = lambda: sky.get(sky.status([cluster], refresh=sky.StatusRefreshMode.AUTO))  # noqa: E731
        records = cast("list[Any]", await self._ask(ask, _ASK_SECONDS, "no state of clusters is told"))
        return _STATES.get(_name(records[0]["status"]), "starting") if records else "absent"

    async def job_state(self, cluster: str, job: int | None) -> JobState:
        sky = self._sky
        jobs = None if job is None else [job]
        found = await self._ask(lambda: sky.get(sky.job_status(cluster, jobs)), _ASK_SECONDS, "no job is told")
        state = next(iter(cast("dict[Any, Any]", found).values()), None)
        if state is None:
            return "ended"
        return "waiting" if _name(state) in _WAITING else "running" if _name(state) == "RUNNING" else "ended"

    def follow(self, cluster: str, job: int | None, say: Say, *, until_end: bool = True) -> Callable[[], None]:
        def run(ended: threading.Event) -> None:
            tell: Say = lambda line: None if ended.is_set() else say(line)  # noqa: E731
            try:
                self._sky.tail_logs(cluster, job, follow=until_end, output_stream=LineWriter(tell))
            except Exception as error:  # SkyPilot's have no common class; the job's state tells what matters
                tell(f"the log of {cluster} broke off: {_first_line(error)}")

        return _followed(run, 0.0 if until_end else _ASK_SECONDS)

    async def line(self, cluster: str, port: int) -> Line:
        await self.write_ssh_config(cluster)
        return SshTunnel(cluster, port)

    async def write_ssh_config(self, cluster: str) -> None:
        """After it `ssh CLUSTER` goes to the first node: SkyPilot's own command writes the entry."""
        command = (sys.executable, "-c", _WRITE_SSH_CONFIG, "status", cluster)
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), _ASK_SECONDS)
        except TimeoutError as error:
            process.kill()
            raise ClusterError(f"`sky status {cluster}` does not end", "Try it; then launch again.") from error
        if process.returncode != 0:
            last = plain(said.decode(errors="replace")).strip().rpartition("\n")[2]
            raise ClusterError(f"there is no way to {cluster} by ssh: {last}", f"Try: sky status {cluster}")

    async def down(self, cluster: str) -> None:
        if await self.state(cluster) == "absent":
            return
        sky = self._sky
        await self._ask(
            lambda: sky.stream_and_get(sky.down(cluster), output_stream=LineWriter(lambda _: None)),
            _DOWN_SECONDS,
            f"the cluster {cluster} is not down",
        )

    def _task(self, task: ClusterTask, secrets: Mapping[str, str]) -> Any:
        made = self._sky.Task.from_yaml_config(task.config())
        if secrets:
            made.update_secrets(dict(secrets))
        return made

    async def _ask(self, call: Callable[[], Any], seconds: float, failure: str, secrets: Any = ()) -> Any:
        try:
            return await run_in_background(call, seconds)
        except TimeoutError as error:
            raise ClusterError(f"{failure}: no answer for {seconds:.0f} s", "`sky status` shows what is on.") from error
        except ClusterError:
            raise
        except Exception as error:  # SkyPilot's have no common class
            text = redacted(_first_line(error), secrets)
            # without the cause, whose words may hold what must not be seen
            raise ClusterError(
                f"{failure}: {text}", "`sky check` shows what is set up, `sky status` what is on."
            ) from None


def _skypilot() -> ModuleType:
    try:
        import sky  # pyright: ignore[reportMissingModuleSource]
    except ModuleNotFoundError as error:
        raise ClusterError(
            "a cluster needs SkyPilot, which is not installed",
            f"{install_line('cloud')} 'skypilot[aws]' (or gcp, kubernetes, …)",
        ) from error
    return sky


def _name(value: Any) -> str:
    return str(getattr(value, "value", value))


def _first_line(error: Exception) -> str:
    text = plain(str(error)).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__


_RUN_END_SECONDS = 120.0
_RUN_LOOK_SECONDS = 0.1


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
        def run(ended: threading.Event) -> None:
            with _log(cluster).open(encoding="utf-8", errors="replace") as stream:
                while not ended.is_set():
                    if line := stream.readline():
                        say(line.rstrip())
                    elif not until_end:
                        return
                    else:
                        time.sleep(_RUN_LOOK_SECONDS)

        return _followed(run, 0.0 if until_end else _RUN_END_SECONDS)

    async def line(self, cluster: str, port: int) -> Line:
        return _Here(port)

    async def down(self, cluster: str) -> None:
        record = ClusterRecord.find(cluster)
        if record is not None and record.process is not None:
            await asyncio.to_thread(self._end, cluster, record.process)
            _log(cluster).unlink(missing_ok=True)

    def _end(self, cluster: str, process: int) -> None:
        """SIGTERM, so that a step in progress is finished; SIGKILL after the deadline. Raises `ClusterError`."""
        deadline = time.monotonic() + _RUN_END_SECONDS
        others = [node.pid for node in self._nodes.pop(cluster, ())[1:]]
        for number, until in ((signal.SIGTERM, deadline), (signal.SIGKILL, deadline + _RUN_END_SECONDS)):
            if not self._runs(cluster, process):
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, number)
            while time.monotonic() < until and self._runs(cluster, process):
                time.sleep(_RUN_LOOK_SECONDS)
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
