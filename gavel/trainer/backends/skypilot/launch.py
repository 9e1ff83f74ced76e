"""One launch: its price is told first, then it is started. The key is kept here before anything is."""

import asyncio
import os
import secrets as random
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr, ValidationError

from gavel.trainer.backends.remote.wire import KEY_VARIABLE
from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord, state_directory
from gavel.trainer.backends.skypilot.cluster_settings import ClusterError, ClusterSettings, redacted
from gavel.trainer.backends.skypilot.cluster_task import backend_task
from gavel.trainer.backends.skypilot.host import ClusterHost, Offer, Say
from gavel.trainer.backends.skypilot.own_package import own_package

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
        """What it will be and cost, which is told."""
        package = await asyncio.to_thread(own_package, state_directory() / "wheels")
        self._task = backend_task(self._settings, package)
        offer = await self.host.offer(self._task)
        for line in offer.lines:
            self.say(line)
        self.say(price_sentence(offer, self._settings))
        return offer

    async def start(self, offer: Offer) -> ClusterRecord:
        """Starts what was offered; its key is kept before."""
        settings = self._settings
        record = ClusterRecord(
            cluster=settings.cluster,
            key=SecretStr(self._key),
            port=settings.port,
            machines=settings.machines(),
            usd_per_hour=offer.usd_per_hour,
            idle_minutes=settings.idle_minutes_to_autostop,
            ends_machines=settings.ends_machines,
        )
        record.save()
        submitted = await self.host.submit(self._task, {**self._values, KEY_VARIABLE: self._key}, self.say)
        record = record.model_copy(update={"job": submitted.job, "process": submitted.process})
        record.save()
        return record


def cluster_settings(**fields: Any) -> ClusterSettings:
    """Raises `ClusterError` for what cannot be."""
    try:
        return ClusterSettings(**fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "the settings"
        raise ClusterError(f"{name}: {first['msg']}", "gavel cluster up --help lists what there is.") from None


def price_sentence(offer: Offer, settings: ClusterSettings) -> str:
    """What the cluster costs, and when that ends."""
    price = "price unknown" if offer.usd_per_hour is None else f"{offer.usd_per_hour:.2f} USD an hour while it is on"
    after = "deleted, with the runs on it," if settings.ends_machines else "stopped"
    return f"{settings.cluster}: {price}; {after} after {settings.idle_minutes_to_autostop} idle minutes"
