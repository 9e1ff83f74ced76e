"""A backend on a cluster: started by SkyPilot, reached through a tunnel, found again by the cluster's name.

The server there ends itself when nobody uses it, and SkyPilot then stops the machines.
"""

import asyncio
import contextlib
import os
import secrets as random
import sys
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
    ClusterTask,
    ServerEndedError,
    cluster_settings,
    find_own_package,
    read_secrets,
    redacted,
    state_directory,
)
from gavel.trainer.backends.skypilot.hosts import ClusterHost, Line, Offer, Say, SkyHost, ThisMachine

_LOOK_SECONDS = 1.0
_JOB_LOOK_SECONDS = 15.0
_ANSWER_SECONDS = 10.0
_TAIL = 15
"""Lines of a log that an error shows."""


async def wait_for_server(record: ClusterRecord, host: ClusterHost, line: Line, say: Say, seconds: float) -> None:
    """Waits until the server answers to the key. Raises `ClusterError`, with the end of the log when its job ended."""
    deadline, looked = time.monotonic() + seconds, time.monotonic()
    tail: deque[str] = deque(maxlen=_TAIL)
    stop: Callable[[], None] | None = None

    def told(text: str) -> None:
        tail.append(text)
        say(text)

    try:
        async with httpx.AsyncClient(base_url=line.url, timeout=_ANSWER_SECONDS, trust_env=False) as client:
            while time.monotonic() < deadline:
                if await _answers(client, record):
                    return
                if stop is None:
                    stop = await asyncio.to_thread(host.follow, record.cluster, record.job, told)
                await asyncio.sleep(_LOOK_SECONDS)
                if time.monotonic() - looked > _JOB_LOOK_SECONDS or record.process is not None:
                    looked = time.monotonic()
                    if await host.job_state(record.cluster, record.job) == "ended":
                        await asyncio.sleep(_LOOK_SECONDS)  # the last lines of its log
                        said = redacted("\n".join(tail), [record.key.get_secret_value()])
                        raise ServerEndedError(
                            f"the server on {record.cluster} has ended. Its log:\n{said}",
                            f"gavel cluster logs {record.cluster} shows all. The machines stop when they are idle; "
                            f"at once: gavel cluster down {record.cluster}",
                        )
    finally:
        if stop is not None:
            await asyncio.to_thread(stop)
    raise ClusterError(
        f"the server on {record.cluster} has not answered for {seconds:.0f} s",
        f"gavel cluster logs {record.cluster} shows what it does; gavel cluster down {record.cluster} ends it.",
    )


async def _answers(client: httpx.AsyncClient, record: ClusterRecord) -> bool:
    """Whether the server answers. Raises `ClusterError` when it is not ours or speaks another protocol."""
    try:
        health = await client.get("/healthz")
        if not health.is_success:
            return False
        spoken = health.json().get("protocol")
        headers = {"Authorization": f"Bearer {record.key.get_secret_value()}", PROTOCOL_HEADER: str(PROTOCOL)}
        admitted = await client.post("/v1/uploads", json=[], headers=headers)
    except (httpx.TransportError, ValueError):
        return False
    if spoken != PROTOCOL:
        raise ClusterError(
            f"{record.cluster} runs another version of Gavel (protocol {spoken}, here {PROTOCOL})",
            f"End it, and launch it again: gavel cluster down {record.cluster}",
        )
    if admitted.status_code == 401:
        raise ClusterError(
            f"the server on {record.cluster} has another key than was kept here",
            f"End it, and launch it again: gavel cluster down {record.cluster}",
        )
    return admitted.is_success


_SHORTEST_KEY = 16


class Launch:
    """One launch: told first, then started."""

    def __init__(self, settings: ClusterSettings, secrets: Mapping[str, str], host: ClusterHost, say: Say) -> None:
        self.host = host
        self._values = dict(secrets)
        self._record = ClusterRecord.find(settings.cluster)
        key = self._record.key.get_secret_value() if self._record else os.environ.get(KEY_VARIABLE, "")
        self._key = key if len(key) >= _SHORTEST_KEY else random.token_urlsafe(24)
        hidden = [*self._values.values(), self._key]
        self.say: Say = lambda line: say(redacted(line, hidden))
        port = self._record.port if self._record else host.port(settings)
        self._settings = settings.model_copy(update={"port": port})

    async def running(self) -> ClusterRecord | None:
        """The cluster if it is up. Raises `ClusterError` for one with other machines, or of unknown key."""
        name = self._settings.cluster
        state = await self.host.state(name)
        if state in ("absent", "stopped"):
            return None
        if self._record is None:
            raise ClusterError(
                f"a cluster {name} is on, and was not started from here: its key is not known",
                f"Choose another name, copy {state_directory() / 'clusters' / name}.json from where it was started, "
                f"or end it: gavel cluster down {name}",
            )
        asked, there = self._settings.machines(), self._record.machines
        if other := [
            f"{field} {there.get(field)}, not {asked[field]}" for field in asked if there.get(field) != asked[field]
        ]:
            raise ClusterError(
                f"the cluster {name} is on with {'; '.join(other)}",
                f"Ask for that, choose another name, or end it first: gavel cluster down {name}",
            )
        return self._record if state == "up" else None

    async def offer(self) -> Offer:
        """The machines and price that the cluster would have."""
        package = await asyncio.to_thread(find_own_package, state_directory() / "wheels")
        self._task = ClusterTask(self._settings, package)
        offer = await self.host.offer(self._task)
        for line in offer.lines:
            self.say(line)
        self.say(price_sentence(offer, self._settings))
        return offer

    async def start(self) -> ClusterRecord:
        """Starts what was offered; its key is kept before."""
        settings = self._settings
        record = ClusterRecord(
            cluster=settings.cluster,
            key=SecretStr(self._key),
            port=settings.port,
            machines=settings.machines(),
        )
        record.save()
        submitted = await self.host.submit(self._task, {**self._values, KEY_VARIABLE: self._key}, self.say)
        record = record.model_copy(update={"job": submitted.job, "process": submitted.process})
        record.save()
        return record


def price_sentence(offer: Offer, settings: ClusterSettings) -> str:
    """A sentence that states the cluster's price and when the cost ends."""
    price = "price unknown" if offer.usd_per_hour is None else f"{offer.usd_per_hour:.2f} USD an hour while it is on"
    after = "deleted, with the runs on it," if settings.ends_machines else "stopped"
    return f"{settings.cluster}: {price}; {after} after {settings.idle_minutes_to_autostop} idle minutes"


CLUSTER_SCHEME = "sky://"
"""Prefix of a cluster's name where a backend address is expected."""
_START_SECONDS = 3600.0
"""Until the server answers: it waits for its machines, and installs torch."""


class SkyPilotBackend(RemoteBackend):
    """Made by `launch` or `attach`; also an async context manager, whose end leaves the cluster on until it is idle."""

    def __init__(self, record: ClusterRecord, host: ClusterHost, line: Line, *, patience: float) -> None:
        super().__init__(line.url, record.key.get_secret_value(), patience=patience)
        self.cluster = record.cluster
        self._host = host
        self._line = line

    @classmethod
    async def launch(
        cls,
        cluster: str = "gavel",
        accelerators: str | None = "H100:1",
        infra: str | None = None,
        image: str | None = None,
        idle_minutes_to_autostop: int = 30,
        down: bool | None = None,
        secrets: Iterable[str] | Mapping[str, str] = (),
        num_nodes: int = 1,
        *,
        max_usd_per_hour: float | None = None,
        patience: float = 600.0,
        say: Say | None = None,
        host: ClusterHost | None = None,
        **more: Any,
    ) -> Self:
        """Starts the cluster, or finds it by its name, and returns when its backend answers.

        `secrets`: names of environment variables here, or values by name. `more`: further fields of `ClusterSettings`.
        `say` is told the price first, then the log (default: standard error). `host` starts the machines (default:
        SkyPilot). Raises `ClusterError`, also when an hour costs more than `max_usd_per_hour`.
        """
        values = read_secrets(secrets)
        settings = cluster_settings(
            cluster=cluster,
            accelerators=accelerators,
            infra=infra,
            image=image,
            idle_minutes_to_autostop=idle_minutes_to_autostop,
            down=down,
            num_nodes=num_nodes,
            secrets=tuple(values),
            **more,
        )
        launch = Launch(settings, values, host or SkyHost(), say or _to_standard_error)
        if await launch.running() is not None:
            return await cls.found(launch, patience=patience)
        offer = await launch.offer()
        if max_usd_per_hour is not None and (offer.usd_per_hour is None or offer.usd_per_hour > max_usd_per_hour):
            price = "an unknown price" if offer.usd_per_hour is None else f"{offer.usd_per_hour:.2f} USD an hour"
            raise ClusterError(
                f"the cluster {cluster} is offered at {price}, and {max_usd_per_hour:.2f} USD is the most",
                "Choose other accelerators or another infra, or raise max_usd_per_hour.",
            )
        return await cls.started(launch, patience=patience)

    @classmethod
    async def started(cls, launch: Launch, *, patience: float = 600.0) -> Self:
        """The backend of a cluster that is started now, as it was offered."""
        record = await launch.start()
        return await cls._connected(record, launch.host, launch.say, patience)

    @classmethod
    async def found(cls, launch: Launch, *, patience: float = 600.0) -> Self:
        """The backend of a cluster that is on; its server is started again if it has ended."""
        record = await launch.running()
        if record is not None:
            with contextlib.suppress(ServerEndedError):
                return await cls._connected(record, launch.host, launch.say, patience)
        await launch.offer()
        return await cls.started(launch, patience=patience)

    @classmethod
    async def attach(
        cls, cluster: str = "gavel", *, patience: float = 600.0, say: Say | None = None, host: ClusterHost | None = None
    ) -> Self:
        """A cluster that was launched from this machine and is up. Raises `ClusterError`; starts nothing."""
        record = _known(cluster)
        host = host or host_of(record)
        if (state := await host.state(cluster)) != "up":
            raise ClusterError(f"the cluster {cluster} is {state}", f"Start it: gavel cluster up {cluster}")
        told = say or _to_standard_error
        return await cls._connected(record, host, told, patience)

    @classmethod
    async def _connected(cls, record: ClusterRecord, host: ClusterHost, say: Say, patience: float) -> Self:
        line = await host.line(record.cluster, record.port)
        try:
            await wait_for_server(record, host, line, say, _START_SECONDS)
            return cls(record, host, line, patience=patience)
        except BaseException:
            await line.close()
            raise

    async def close(self) -> None:
        """Ends this client; the cluster stays on until it is idle."""
        await super().close()
        await self._line.close()

    async def down(self) -> None:
        """Ends the cluster and its machines, with the runs that are on them, and this client."""
        await self.close()
        await end_cluster(self.cluster, self._host)


async def end_cluster(cluster: str, host: ClusterHost) -> None:
    """Ends its machines, and forgets it. Raises `ClusterError`."""
    await host.down(cluster)
    record = ClusterRecord.find(cluster)
    if record is not None:
        record.delete()


def host_of(record: ClusterRecord) -> ClusterHost:
    """The host that started the cluster."""
    return ThisMachine() if record.process is not None else SkyHost()


def _known(cluster: str) -> ClusterRecord:
    record = ClusterRecord.find(cluster)
    if record is None:
        known = ", ".join(each.cluster for each in ClusterRecord.all()) or "none"
        raise ClusterError(
            f"no cluster {cluster} was started from here; known: {known}", f"Start it: gavel cluster up {cluster}"
        )
    return record


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
