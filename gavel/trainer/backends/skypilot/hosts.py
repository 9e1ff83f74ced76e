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
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import psutil

from gavel.base.extras import install_line
from gavel.base.network import free_port
from gavel.base.text import counted
from gavel.trainer.backends.skypilot.cluster import ClusterError, ClusterRecord, redacted, state_directory

T = TypeVar("T")
Say = Callable[[str], None]
"""Takes a line of a log."""
State = Literal["absent", "stopped", "starting", "up", "stopping"]
Offer = tuple[list[str], float | None]
"""Lines that describe machines for users, and the price of all nodes in USD an hour; None where it is not known."""


_SSH = (
    *("ssh", "-N", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)
_KEPT_UP = "while kill -0 {process} 2>/dev/null; do {ssh}; sleep 2; done"
_END_SECONDS = 5.0


class SshTunnel:
    """`url` leads to the port while the tunnel is open and ssh gets through, which is started again when it ends."""

    def __init__(self, name: str, port: int) -> None:
        """`name`: of the node in ssh's own configuration. Raises `ClusterError` without ssh."""
        if shutil.which("ssh") is None:
            raise ClusterError("there is no ssh here", "Install it (Debian: apt install openssh-client).")
        local = free_port()
        self.url = f"http://127.0.0.1:{local}"
        ssh = shlex.join([*_SSH, "-L", f"127.0.0.1:{local}:127.0.0.1:{port}", "--", name])
        # in a session of its own: Ctrl-C finishes a step first, which needs the tunnel
        self._process = _start(_KEPT_UP.format(process=os.getpid(), ssh=ssh), os.environ, Path(os.devnull))

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_SECONDS)


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


_ASK_SECONDS = 300.0
"""Timeout of a request; the first one starts SkyPilot's API server."""
_LAUNCH_SECONDS = 3600.0
_DOWN_SECONDS = 1200.0
_STATES: dict[str, State] = {"UP": "up", "STOPPED": "stopped", "AUTOSTOPPING": "stopping"}
"""Others are on the way up."""
_NOT_ENDED = ("INIT", "PENDING", "SETTING_UP", "RUNNING")
_CHOSEN = re.compile(r"(\d+(?:\.\d+)?)\s+✔")
_WRITE_SSH_CONFIG = "import sys; from sky.cli import cli; sys.exit(cli())"


class SkyHost:
    """SkyPilot, through its API server. Raises `ClusterError` where SkyPilot is not installed.

    Every method may raise a `ClusterError`, and ends by a deadline, `tail` with the job. `config` is the task's.
    """

    is_here = False
    """Whether its clusters are this machine."""

    def __init__(self) -> None:
        try:
            import sky  # pyright: ignore[reportMissingModuleSource]
        except ModuleNotFoundError as error:
            raise ClusterError(
                "a cluster needs SkyPilot, which is not installed",
                f"{install_line('cloud')} 'skypilot[aws]' (or gcp, kubernetes, …)",
            ) from error
        self._sky = sky

    async def offer(self, config: dict[str, Any]) -> Offer:
        """The machines and price for the task; starts nothing."""
        sky, lines = self._sky, list[str]()

        def ask() -> None:
            with sky.Dag() as dag:
                dag.add(self._task(config, {}))
            sky.stream_and_get(sky.optimize(dag), output_stream=LineWriter(lines.append))

        await self._ask(ask, _ASK_SECONDS, "SkyPilot finds no such machines")
        chosen = [found for line in lines if (found := _CHOSEN.search(line))]
        return lines, float(chosen[-1][1]) if chosen else None

    async def submit(self, config: dict[str, Any], secrets: Mapping[str, str], say: Say) -> int:
        """Starts the cluster unless it is up, and the task's job on it, whose number it gives; `say` is told what
        happens."""
        sky, name, begun = self._sky, config["name"], list[Any]()

        def launch() -> int | None:
            begun.append(sky.launch(self._task(config, secrets), cluster_name=name))
            job, _ = sky.stream_and_get(begun[0], output_stream=LineWriter(say))
            return cast("int | None", job)

        try:
            job = await self._ask(launch, _LAUNCH_SECONDS, f"the cluster {name} did not start", secrets.values())
        except asyncio.CancelledError:
            if begun:
                with contextlib.suppress(ClusterError):
                    await self._ask(lambda: sky.api_cancel(begun[0]), _ASK_SECONDS, "the launch was not cancelled")
            raise
        if job is None:
            raise ClusterError(f"the cluster {name} is up, and the server was not started", "Launch it again.")
        return job

    async def state(self, cluster: str) -> State:
        sky = self._sky
        ask = lambda: sky.get(sky.status([cluster], refresh=sky.StatusRefreshMode.AUTO))  # noqa: E731
        records = cast("list[Any]", await self._ask(ask, _ASK_SECONDS, "no state of clusters is told"))
        return _STATES.get(records[0]["status"].value, "starting") if records else "absent"

    async def ended(self, cluster: str, job: int | None) -> bool:
        """Whether that job, or the newest one, has ended."""
        sky = self._sky
        jobs = None if job is None else [job]
        found = await self._ask(lambda: sky.get(sky.job_status(cluster, jobs)), _ASK_SECONDS, "no job is told")
        status = next(iter(cast("dict[Any, Any]", found).values()), None)
        return status is None or status.value not in _NOT_ENDED

    def tail(self, cluster: str, job: int | None, say: Say, *, follow: bool) -> None:
        """Tells `say` the lines of the job's log; with `follow` until the job ends."""
        try:
            self._sky.tail_logs(cluster, job, follow=follow, output_stream=LineWriter(say))
        except Exception as error:  # SkyPilot's have no common class; the job's state tells what matters
            say(f"the log of {cluster} broke off: {_first_line(error)}")

    async def tunnel(self, cluster: str, port: int) -> SshTunnel:
        """A way to a port of the cluster's first node; SkyPilot's own command writes the entry of ssh's
        configuration."""
        command = [sys.executable, "-c", _WRITE_SSH_CONFIG, "status", cluster]
        ask = partial(subprocess.run, command, capture_output=True, text=True, timeout=_ASK_SECONDS)
        try:
            done = await asyncio.to_thread(ask)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"`sky status {cluster}` does not end", "Try it; then launch again.") from error
        if done.returncode != 0:
            last = plain(done.stdout + done.stderr).strip().rpartition("\n")[2]
            raise ClusterError(f"there is no way to {cluster} by ssh: {last}", f"Try: sky status {cluster}")
        return SshTunnel(cluster, port)

    async def down(self, cluster: str) -> None:
        """Ends the cluster and its machines; does nothing for one that is not there."""
        if await self.state(cluster) == "absent":
            return
        end = lambda: self._sky.stream_and_get(self._sky.down(cluster), output_stream=io.StringIO())  # noqa: E731
        await self._ask(end, _DOWN_SECONDS, f"the cluster {cluster} is not down")

    def _task(self, config: dict[str, Any], secrets: Mapping[str, str]) -> Any:
        made = self._sky.Task.from_yaml_config(config)
        if secrets:
            made.update_secrets(dict(secrets))
        return made

    async def _ask(self, call: Callable[[], Any], seconds: float, failure: str, secrets: Any = ()) -> Any:
        try:
            return await run_in_background(call, seconds)
        except TimeoutError as error:
            raise ClusterError(f"{failure}: no answer for {seconds:.0f} s", "`sky status` shows what is on.") from error
        except Exception as error:  # SkyPilot's have no common class
            text = redacted(_first_line(error), secrets)
            # without the cause, whose words may hold what must not be seen
            raise ClusterError(
                f"{failure}: {text}", "`sky check` shows what is set up, `sky status` what is on."
            ) from None


def _first_line(error: Exception) -> str:
    text = plain(str(error)).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__


_RUN_END_SECONDS = 120.0
_RUN_LOOK_SECONDS = 0.1


class ThisMachine:
    """As `SkyHost`, but runs the run script of one node for each node, with what SkyPilot tells its nodes. A job is the
    process of the first one."""

    is_here = True

    async def offer(self, config: dict[str, Any]) -> Offer:
        nodes = config["num_nodes"]
        return [f"{counted(nodes, 'node')} on this machine"], 0.0

    async def submit(self, config: dict[str, Any], secrets: Mapping[str, str], say: Say) -> int:
        name, count = config["name"], config["num_nodes"]
        log = _log(name)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        given = {
            **os.environ,
            "GAVEL_PYTHON": sys.executable,
            "GAVEL_MASTER_PORT": str(free_port()),
            "SKYPILOT_NUM_NODES": str(count),
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * count),
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
            **secrets,
        }
        log.write_bytes(b"")
        scripts = [{**given, "SKYPILOT_NODE_RANK": str(rank)} for rank in range(count)]
        first, *_ = [_start(config["run"], environment, log) for environment in scripts]
        say(f"{name} runs on this machine, process {first.pid}; its log is {log}")
        return first.pid

    async def state(self, cluster: str) -> State:
        return "absent" if _process_of(cluster) is None else "up"

    async def ended(self, cluster: str, job: int | None) -> bool:
        return _process(job) is None

    def tail(self, cluster: str, job: int | None, say: Say, *, follow: bool) -> None:
        with _log(cluster).open(encoding="utf-8", errors="replace") as stream:
            runs = True
            while runs:
                runs = follow and _process(job) is not None
                for line in stream:
                    say(line.rstrip())
                time.sleep(_RUN_LOOK_SECONDS)

    async def tunnel(self, cluster: str, port: int) -> None:
        return None

    async def down(self, cluster: str) -> None:
        """SIGTERM, so that a step in progress is finished; SIGKILL after the deadline. The other nodes end with the
        first."""
        process = _process_of(cluster)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process is not None and process.is_running():
                os.killpg(process.pid, number)
                with contextlib.suppress(psutil.TimeoutExpired):
                    await asyncio.to_thread(process.wait, _RUN_END_SECONDS)
        _log(cluster).unlink(missing_ok=True)


def _start(script: str, environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as out:
        return subprocess.Popen(
            ["bash", "-c", script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C finishes a step first, which needs it
        )


def _log(cluster: str) -> Path:
    return state_directory() / "clusters" / f"{cluster}.log"


def _process_of(cluster: str) -> psutil.Process | None:
    record = ClusterRecord.find(cluster)
    return _process(record.job if record else None)


def _process(number: int | None) -> psutil.Process | None:
    """The leader of a session that runs."""
    try:
        process = psutil.Process(number) if number else None
        runs = process is not None and process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == number
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None
    return process if runs else None


ClusterHost = SkyHost | ThisMachine
