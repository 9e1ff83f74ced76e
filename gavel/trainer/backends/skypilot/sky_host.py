"""Clusters by SkyPilot's SDK. Each of its calls is a request, whose id is waited for; its log is shown meanwhile."""

import asyncio
import contextlib
import io
import re
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar, cast

from gavel.base.extras import install_line
from gavel.trainer.backends.skypilot.cluster_settings import ClusterError, ClusterSettings, redacted
from gavel.trainer.backends.skypilot.cluster_task import ClusterTask
from gavel.trainer.backends.skypilot.host import ClusterStatus, JobState, Line, Offer, Say, State, Submitted, idle_words
from gavel.trainer.backends.skypilot.ssh_tunnel import SshTunnel

T = TypeVar("T")


async def in_background(call: Callable[[], T], seconds: float) -> T:
    """What `call` gives. Raises `TimeoutError`; the call itself then goes on, and nobody hears of it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = call()
        except StopIteration as stopped:  # no future takes one
            error = RuntimeError(f"the call ended with {stopped!r}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, daemon=True, name="gavel-cluster").start()
    return await asyncio.wait_for(done, seconds)


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
"""Of a question; the first one starts SkyPilot's API server."""
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

        await self._asked(ask, _ASK_SECONDS, "SkyPilot finds no such machines")
        chosen = [found for line in lines if (found := _CHOSEN.search(line))]
        return Offer(tuple(lines), float(chosen[-1][1]) if chosen else None)

    async def submit(self, task: ClusterTask, secrets: Mapping[str, str], say: Say) -> Submitted:
        sky, name, begun = self._sky, task.settings.cluster, list[Any]()

        def launch() -> int | None:
            begun.append(sky.launch(self._task(task, secrets), cluster_name=name))
            job, _ = sky.stream_and_get(begun[0], output_stream=LineWriter(say))
            return cast("int | None", job)

        try:
            job = await self._asked(launch, self._launch_seconds, f"the cluster {name} did not start", secrets.values())
        except (asyncio.CancelledError, TimeoutError, ClusterError) as error:
            if begun and not isinstance(error, ClusterError):
                with contextlib.suppress(ClusterError):
                    await self._asked(lambda: sky.api_cancel(begun[0]), _ASK_SECONDS, "the launch was not cancelled")
            raise
        if job is None:
            raise ClusterError(f"the cluster {name} is up, and the server was not started", "Launch it again.")
        return Submitted(job)

    async def state(self, cluster: str) -> State:
        records = await self._records([cluster])
        return _STATES.get(_name(records[0]["status"]), "starting") if records else "absent"

    async def job_state(self, cluster: str, job: int | None) -> JobState:
        sky = self._sky
        jobs = None if job is None else [job]
        found = await self._asked(lambda: sky.get(sky.job_status(cluster, jobs)), _ASK_SECONDS, "no job is told")
        state = next(iter(cast("dict[Any, Any]", found).values()), None)
        if state is None:
            return "ended"
        return "waiting" if _name(state) in _WAITING else "running" if _name(state) == "RUNNING" else "ended"

    def follow(self, cluster: str, job: int | None, say: Say, *, until_end: bool = True) -> Callable[[], None]:
        ended = threading.Event()

        def tell(line: str) -> None:
            if not ended.is_set():
                say(line)

        def run() -> None:
            try:
                self._sky.tail_logs(cluster, job, follow=until_end, output_stream=LineWriter(tell))
            except Exception as error:  # SkyPilot's have no common class; the job's state tells what matters
                tell(f"the log of {cluster} broke off: {_first_line(error)}")

        thread = threading.Thread(target=run, daemon=True, name="gavel-cluster-log")
        thread.start()

        def end() -> None:
            if not until_end:
                thread.join(_ASK_SECONDS)
            ended.set()

        return end

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

    async def statuses(self) -> list[ClusterStatus]:
        sky = self._sky
        records = await self._records(None)
        report = await self._asked(lambda: sky.get(sky.cost_report()), _ASK_SECONDS, "costs are not known")
        costs = {entry["name"]: entry for entry in cast("list[dict[str, Any]]", report or [])}
        return [_status(record, costs.get(record["name"])) for record in records]

    async def down(self, cluster: str) -> None:
        if await self.state(cluster) == "absent":
            return
        sky = self._sky
        await self._asked(
            lambda: sky.stream_and_get(sky.down(cluster), output_stream=LineWriter(lambda _: None)),
            _DOWN_SECONDS,
            f"the cluster {cluster} is not down",
        )

    def _task(self, task: ClusterTask, secrets: Mapping[str, str]) -> Any:
        made = self._sky.Task.from_yaml_config(task.config())
        if secrets:
            made.update_secrets(dict(secrets))
        return made

    async def _records(self, clusters: list[str] | None) -> list[Any]:
        """As they are now in their clouds."""
        sky = self._sky
        refresh = sky.StatusRefreshMode.AUTO
        asked = self._asked(
            lambda: sky.get(sky.status(clusters, refresh=refresh)), _ASK_SECONDS, "no state of clusters is told"
        )
        return cast("list[Any]", await asked)

    async def _asked(self, call: Callable[[], Any], seconds: float, failure: str, secrets: Any = ()) -> Any:
        try:
            return await in_background(call, seconds)
        except TimeoutError as error:
            raise ClusterError(
                f"{failure}: no answer for {seconds:.0f} s", "`gavel cluster status` shows what is on."
            ) from error
        except ClusterError:
            raise
        except Exception as error:  # SkyPilot's have no common class
            text = redacted(_first_line(error), secrets)
            # without the cause, whose words may hold what must not be seen
            raise ClusterError(
                f"{failure}: {text}", "`sky check` shows what is set up, `gavel cluster status` what is on."
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


def _status(record: Any, cost: Mapping[str, Any] | None) -> ClusterStatus:
    minutes, ends = int(record["autostop"]), bool(record["to_down"])
    seconds, usd = (float(cost["duration"] or 0), cost["total_cost"]) if cost else (0.0, None)
    return ClusterStatus(
        cluster=str(record["name"]),
        state=_STATES.get(_name(record["status"]), "starting"),
        resources=str(record["resources_str"] or ""),
        autostop="never" if minutes < 0 else idle_words(minutes, ends),
        usd_per_hour=float(usd) / seconds * 3600 if usd and seconds else None,
        usd_so_far=None if usd is None else float(usd),
    )


def _name(value: Any) -> str:
    return str(getattr(value, "value", value))


def _first_line(error: Exception) -> str:
    text = plain(str(error)).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__
