"""A backend on a cluster: started by SkyPilot, reached through a tunnel, found again by the cluster's name.

The server there ends itself when nobody uses it, and SkyPilot then stops the machines.
"""

import asyncio
import contextlib
import os
import secrets as random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import httpx
from pydantic import SecretStr

from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.wire import KEY_VARIABLE, PROTOCOL, PROTOCOL_HEADER
from gavel.trainer.backends.skypilot.cluster import (
    ClusterError,
    ClusterRecord,
    ClusterSettings,
    ServerEndedError,
    pack_wheel,
    read_secrets,
    redacted,
    state_directory,
    task_config,
)
from gavel.trainer.backends.skypilot.hosts import ClusterHost, Say, SkyHost, SshTunnel, ThisMachine

_LOOK_SECONDS = 1.0
_JOB_LOOK_SECONDS = 15.0
_ANSWER_SECONDS = 10.0
_TAIL = 15
"""Lines of a log that an error shows."""


async def _wait_for_server(record: ClusterRecord, host: ClusterHost, url: str, say: Say) -> None:
    """Waits until the server answers to the key. Raises `ClusterError`, with the end of the log when its job ended."""
    deadline, looked = time.monotonic() + _START_SECONDS, time.monotonic()
    cluster, job, key = record.cluster, record.job, record.key.get_secret_value()
    last: deque[str] = deque(maxlen=_TAIL)
    done = threading.Event()

    def told(text: str) -> None:
        if not done.is_set():
            last.append(text)
            say(text)

    follow = threading.Thread(target=lambda: host.tail(cluster, job, told, follow=True), daemon=True)
    headers = {"Authorization": f"Bearer {key}", PROTOCOL_HEADER: str(PROTOCOL)}
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_ANSWER_SECONDS, trust_env=False) as client:
            while time.monotonic() < deadline:
                if await _answers(client, cluster):
                    return
                if follow.ident is None:
                    follow.start()
                await asyncio.sleep(_LOOK_SECONDS)
                if not host.is_here and time.monotonic() - looked < _JOB_LOOK_SECONDS:
                    continue
                looked = time.monotonic()
                if await host.ended(cluster, job):
                    await asyncio.sleep(_LOOK_SECONDS)  # the last lines of its log
                    lines = redacted("\n".join(last), [key])
                    raise ServerEndedError(
                        f"the server on {cluster} has ended. Its log:\n{lines}",
                        f"gavel cluster logs {cluster} shows all. The machines stop when they are idle; "
                        f"at once: gavel cluster down {cluster}",
                    )
    finally:
        done.set()
    raise ClusterError(
        f"the server on {cluster} has not answered for {_START_SECONDS:.0f} s",
        f"gavel cluster logs {cluster} shows what it does; gavel cluster down {cluster} ends it.",
    )


async def _answers(client: httpx.AsyncClient, cluster: str) -> bool:
    """Whether the server answers. Raises `ClusterError` when it is not ours or speaks another protocol."""
    try:
        answer = await client.get("/openapi.json")
    except httpx.TransportError:
        return False
    for status, why in (426, "runs another version of Gavel"), (401, "has another key than was kept here"):
        if answer.status_code == status:
            raise ClusterError(
                f"the server on {cluster} {why}", f"End it, and launch it again: gavel cluster down {cluster}"
            )
    return answer.is_success


def _check_machines(settings: ClusterSettings, record: ClusterRecord | None) -> None:
    """Raises `ClusterError` for a cluster that is on with other machines, or whose key is not known."""
    name = settings.cluster
    if record is None:
        raise ClusterError(
            f"a cluster {name} is on, and was not started from here: its key is not known",
            f"Choose another name, copy {state_directory() / 'clusters' / name}.json from where it was started, "
            f"or end it: gavel cluster down {name}",
        )
    asked, there = settings.machines(), record.machines
    other = [f"{field} {there.get(field)}, not {asked[field]}" for field in asked if there.get(field) != asked[field]]
    if other:
        raise ClusterError(
            f"the cluster {name} is on with {'; '.join(other)}",
            f"Ask for that, choose another name, or end it first: gavel cluster down {name}",
        )


_SHORTEST_KEY = 16
_START_SECONDS = 3600.0
"""Until the server answers: it waits for its machines, and installs torch."""


class SkyPilotBackend(RemoteBackend):
    """Made by `launch` or `attach`; also an async context manager, whose end leaves the cluster on until it is idle."""

    def __init__(
        self, record: ClusterRecord, host: ClusterHost, url: str, tunnel: SshTunnel | None, *, patience: float
    ) -> None:
        super().__init__(url, record.key.get_secret_value(), patience=patience)
        self.cluster = record.cluster
        self._host = host
        self._tunnel = tunnel

    @classmethod
    async def launch(
        cls,
        cluster: str = "gavel",
        accelerators: str | None = "H100:1",
        secrets: Iterable[str] | Mapping[str, str] = (),
        *,
        max_usd_per_hour: float | None = None,
        patience: float = 600.0,
        say: Say | None = None,
        host: ClusterHost | None = None,
        agree: Callable[[], bool] | None = None,
        **settings: Any,
    ) -> Self:
        """Starts the cluster, or finds it by its name, and returns when its backend answers.

        `secrets`: names of environment variables here, or values by name. `settings`: others of `ClusterSettings`,
        such as infra, image, num_nodes, idle_minutes_to_autostop and down. `say` is told the price first, then the log
        (default: standard error). `host` starts the machines (default: SkyPilot). `agree` is asked before they are
        started. Raises `FieldError`, and `ClusterError`, also when an hour costs more than
        `max_usd_per_hour`.
        """
        values = read_secrets(secrets)
        record, host = ClusterRecord.find(cluster), host or SkyHost()
        if record is not None:
            settings["port"] = record.port
        asked = ClusterSettings(cluster=cluster, accelerators=accelerators, **settings)
        key = record.key.get_secret_value() if record else os.environ.get(KEY_VARIABLE, "")
        values[KEY_VARIABLE] = key if len(key) >= _SHORTEST_KEY else random.token_urlsafe(24)
        told: Say = lambda line: (say or _to_standard_error)(redacted(line, values.values()))  # noqa: E731
        if (state := await host.state(cluster)) not in ("absent", "stopped"):
            _check_machines(asked, record)
        found = state == "up"
        if found and record is not None:
            with contextlib.suppress(ServerEndedError):  # which is started again
                return await cls._connected(record, host, told, patience)
        config = task_config(asked, await asyncio.to_thread(pack_wheel, state_directory() / "packages"))
        lines, price = await host.offer(config)
        said = "an unknown price" if price is None else f"{price:.2f} USD an hour"
        after = "deleted, with the runs on it," if asked.ends_machines else "stopped"
        idle = f"{after} after {asked.idle_minutes_to_autostop} idle minutes"
        for line in (*lines, f"{cluster}: {said} while it is on; {idle}"):
            told(line)
        if max_usd_per_hour is not None and not found and (price is None or price > max_usd_per_hour):
            raise ClusterError(
                f"the cluster {cluster} is offered at {said}, and {max_usd_per_hour:.2f} USD is the most",
                "Choose other accelerators or another infra, or raise max_usd_per_hour.",
            )
        if agree is not None and not found and not agree():
            raise ClusterError("nothing was started", "With --yes it is started without a question.")
        record = ClusterRecord(
            cluster=cluster,
            key=SecretStr(values[KEY_VARIABLE]),
            port=asked.port,
            machines=asked.machines(),
            is_here=host.is_here,
        )
        record.save()  # before anything is on
        record = record.model_copy(update={"job": await host.submit(config, values, told)})
        record.save()
        return await cls._connected(record, host, told, patience)

    @classmethod
    async def attach(
        cls, cluster: str = "gavel", *, patience: float = 600.0, say: Say | None = None, host: ClusterHost | None = None
    ) -> Self:
        """A cluster that was launched from this machine and is up. Raises `ClusterError`; starts nothing."""
        record = ClusterRecord.find(cluster)
        if record is None:
            known = ", ".join(each.cluster for each in ClusterRecord.all()) or "none"
            raise ClusterError(
                f"no cluster {cluster} was started from here; known: {known}", f"Start it: gavel cluster up {cluster}"
            )
        host = host or host_of(record)
        if (state := await host.state(cluster)) != "up":
            raise ClusterError(f"the cluster {cluster} is {state}", f"Start it: gavel cluster up {cluster}")
        return await cls._connected(record, host, say or _to_standard_error, patience)

    @classmethod
    async def _connected(cls, record: ClusterRecord, host: ClusterHost, say: Say, patience: float) -> Self:
        tunnel = await host.tunnel(record.cluster, record.port)
        url = tunnel.url if tunnel else f"http://127.0.0.1:{record.port}"
        try:
            await _wait_for_server(record, host, url, say)
            return cls(record, host, url, tunnel, patience=patience)
        except BaseException:
            if tunnel:
                tunnel.close()
            raise

    async def close(self) -> None:
        """Ends this client; the cluster stays on until it is idle."""
        await super().close()
        if self._tunnel:
            self._tunnel.close()

    async def down(self) -> None:
        """Ends the cluster and its machines, with the runs that are on them, and this client."""
        await self.close()
        await end_cluster(self.cluster, self._host)


async def end_cluster(cluster: str, host: ClusterHost) -> None:
    """Ends its machines, and forgets it. Raises `ClusterError`."""
    await host.down(cluster)
    ClusterRecord.delete(cluster)


def host_of(record: ClusterRecord | None) -> ClusterHost:
    """The host that started the cluster; SkyPilot for one that is not known here."""
    return ThisMachine() if record is not None and record.is_here else SkyHost()


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
