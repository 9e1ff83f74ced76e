"""The interface of deployment hosts, how an address selects one, and how its API is called.

    host = open_host("vllm:http://10.0.0.2:8000", path_map="/home/me/runs=/mnt/runs")

A module of a host has `open_host(place, **options)`, where `place` is what follows the colon (empty without one). The
options are keyword arguments that JSON can hold; keys and tokens come from the environment, never through them. What
makes another deployment of the same adapter belongs to the place, not to the options.

A host plans a deployment as the resources that it creates, in order. Each has a name made of the record's and is looked
up before every attempt to create it, so nothing is created twice, after a 5xx, a cut line or a crash either.
"""

import importlib
import inspect
import json
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import Any, Protocol, TypeVar, cast
from urllib.request import getproxies

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay

from gavel.base import entry_points
from gavel.base.extras import install_line
from gavel.base.network import TRANSPORT_ERRORS, is_on_this_machine, server_address
from gavel.base.secrets import hide_secrets, without_secrets
from gavel.llm.failures import pause
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

logger = logging.getLogger(__name__)
T = TypeVar("T")
HOSTS = {name: f"gavel.trainer.deploy.{name}" for name in ("vllm", "together", "fireworks", "wandb", "huggingface")}
Report = Callable[[str], None]
"""Hears one line about what is being done, for the user to read."""
PATIENCE = 120.0
"""Seconds that one request is repeated."""
GOES_ON = "The same command goes on where it was."
PLAIN_TARGETS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
"""The layers that hosted services take adapters of."""
_TOLD_AFTER = 3
"""Attempts that failed, after which it is told that the request is repeated."""
_PAGE = "a web page, not an answer of its API: a proxy or another server answers there"
_REMEDIES = {
    200: f"Check the address, and a proxy or a login page before it. {GOES_ON}",
    0: f"Check the address and the network. {GOES_ON}",
    401: f"Check the API key in the environment or in .env: it is wrong, or has expired. {GOES_ON}",
    402: f"Add credit to the account. {GOES_ON}",
    403: f"The key may not do this: check its rights and its project. {GOES_ON}",
    429: f"Wait a minute. {GOES_ON}",
}


@dataclass(slots=True)
class Resource:
    """Something that a deployment creates at its host."""

    what: str
    find: Callable[[], Awaitable[Any]]
    """Looks it up by its name; None where it is not there."""
    make: Callable[[], Awaitable[object]]
    """Creates it; called where it is not found, again after a transient error."""
    remove: Callable[[], Awaitable[object]] | None = None
    """Removes it; None: it goes with another one, or stays."""
    state: Callable[[Any], str] = lambda _: ""
    """Of what was found, its state while it is not ready, and "" once it is. Raises `DeployError` where it failed."""
    remedies: Mapping[int, str] = field(default_factory=dict[int, str])
    """Remedies for refusals by HTTP status, where they differ from the host's."""
    found: Any = None
    """What `find` returned last."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The resources of a deployment, each of which may need what was found of those before it."""

    resources: Sequence[Resource]
    served: Callable[[], tuple[str, str]]
    """Base URL and model id, once all resources are ready."""


class DeployHost(Protocol):
    """A service or server. Every method raises `DeployError` with what to do next."""

    name: str
    place: str
    """The part of the address after the colon, normalized by the host."""
    key_variable: str | None
    """The environment variable that holds the API key of a deployment; None for a server without one."""
    remedies: Mapping[int, str]
    """Remedies for the host's refusals by HTTP status, where they differ from the common ones."""

    def check(self, adapter: AdapterFacts) -> list[str]:
        """Why the host does not take this adapter, each with what would fit; asks nothing of the host's network."""
        ...

    def plan(self, record: DeploymentRecord, report: Report) -> AbstractAsyncContextManager[Plan]:
        """The plan of the deployment, over a client that is open within the block."""
        ...

    def costs(self, record: DeploymentRecord) -> str:
        """The cost while deployed, in a clause."""
        ...


@dataclass(frozen=True, slots=True)
class Deployment:
    """The address and model id under which the policy of one step is served, OpenAI-compatible."""

    host: DeployHost
    record: DeploymentRecord
    base_url: str
    model_id: str
    """The value for `model` in a request."""

    @property
    def id(self) -> str:
        """Id of its record, which `gavel undeploy` takes."""
        return self.record.id

    def openai_client(self) -> AsyncOpenAI:
        """A client of the endpoint; its key is read from the environment now. Raises `DeployError` without one."""
        key = key_of(self.host.key_variable) if self.host.key_variable else "none"  # the openai package wants one
        http_client = DefaultAsyncHttpxClient(trust_env=not is_on_this_machine(self.base_url))  # no proxy for loopback
        return AsyncOpenAI(base_url=self.base_url, api_key=key, http_client=http_client)

    async def undeploy(self) -> None:
        """Stops serving and removes what was made for it; doing so again changes nothing. Raises `DeployError`."""
        from gavel.trainer.deploy.deploy import undeploy

        await undeploy(self.record)


def tell_costs(host: DeployHost, record: DeploymentRecord) -> str:
    """A sentence that states the cost while deployed, and how to stop it."""
    return f"{host.costs(record)}; to stop it and remove what was made: gavel undeploy {record.id}"


def open_host(address: str, **options: Any) -> DeployHost:
    """The host of `name` or `name:place`. Raises `DeployError` for one that is not known, or an option it lacks."""
    name, _, place = address.partition(":")
    hosts = entry_points.names("gavel.hosts", HOSTS)
    if name not in hosts:
        raise DeployError(f"there is no host {name!r}", f"Hosts: {', '.join(hosts)}.")
    make = entry_points.load("gavel.hosts", name, HOSTS).open_host
    known = [each for each in inspect.signature(make).parameters if each != "place"]
    if unknown := sorted(options.keys() - set(known)):
        raise DeployError(f"{name} has no option {unknown[0]!r}", f"It has: {', '.join(known) or 'none'}.")
    return make(place, **options)


def find_misfits(
    service: str,
    adapter: AdapterFacts,
    *,
    ranks: range,
    targets: Collection[str] | None = None,
    takes: Collection[str] = (),
    own_base: str | None = None,
) -> list[str]:
    """Why a service does not take an adapter.

    `targets` None: any layer. `takes`: what it serves beyond plain LoRA. `own_base`: what else helps an adapter of a
    base that is on this machine alone; None: the service serves it.
    """
    found: list[str] = []
    if adapter.rank not in ranks:
        found.append(f"its rank is {adapter.rank}; {service} takes ranks {ranks[0]} to {ranks[-1]} (--lora-rank)")
    if targets is not None and (others := sorted(set(adapter.targets) - set(targets))):
        found.append(f"it adapts {', '.join(others)}; {service} takes {', '.join(sorted(targets))} (--lora-target)")
    if special := [each for each in adapter.special if each not in takes]:
        found.append(f"it has {', '.join(special)}, which {service} does not serve; merge it: gavel export")
    if own_base is not None and adapter.base_is_local:
        found.append(
            f"its base {adapter.base_model} is only on this machine, not at {service}: train a model of the Hugging "
            f"Face Hub, or use a vLLM of your own (gavel deploy RUN vllm:http://HOST:PORT){own_base}"
        )
    return found


def sdk(package: str) -> Any:
    """The module of a host's own package. Raises `DeployError` where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DeployError(f"{package} is not installed, which this host needs", install_line("deploy")) from error


def key_of(variable: str, remedy: str = "Set it in the environment or in .env.") -> str:
    """The key as a header holds it. Raises `DeployError`, which does not tell it, for none or an impossible one."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise DeployError(f"{variable} is not set", remedy)
    if not all("!" <= character <= "~" for character in key):
        why = "has characters that no key has: a space, a line's end, or a letter beyond ASCII"
        raise DeployError(f"{variable} {why}", "Copy it again from the host's console.")
    return key


def place_of_server(given: str, example: str) -> str:
    """The address of a server without a slash or `/v1` at its end. Raises `DeployError`, which tells no password."""
    try:
        return server_address(given).removesuffix("/v1")
    except ValueError as error:
        raise DeployError(str(error), f"Give {example} alone.") from error


async def unless_gone(request: Callable[[], Awaitable[T]]) -> T | None:
    """Returns the result of a request; None if the host replies 404."""
    try:
        return await request()
    except Exception as error:
        if status_of(error) == 404:
            return None
        raise


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error tells, of SDKs too; 0 where no answer came, None where it is no error of HTTP."""
    if isinstance(error, TRANSPORT_ERRORS):
        return 0
    response: Any = getattr(error, "response", None)
    for found in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(found, int):
            return found
    is_cut = {each.__name__ for each in type(error).__mro__} & {"APIConnectionError", "ConnectionError"}
    return 0 if is_cut else None


async def retry(request: Callable[[], Awaitable[T]], patience: float | None = None) -> T:
    """Returns the result of `request`, retried on transient errors for `patience` seconds; then raises the last one."""
    limit = PATIENCE if patience is None else patience

    def may_pass(error: BaseException) -> bool:
        status = status_of(error)
        return status is not None and (status in (0, 408, 425, 429) or status >= 500)

    def wait(state: RetryCallState) -> float:
        error = state.outcome and state.outcome.exception()
        if state.attempt_number == _TOLD_AFTER:
            logger.warning("no answer yet (%s); trying again for %.0f s", without_secrets(str(error))[:300], limit)
        return pause(cast(BaseException, error), state.attempt_number)

    async def attempt() -> T:
        return await request()

    stop = stop_before_delay(limit)
    return await AsyncRetrying(retry=retry_if_exception(may_pass), wait=wait, stop=stop, reraise=True)(attempt)


async def ask(
    host: DeployHost, what: str, request: Callable[[], Awaitable[T]], remedies: Mapping[int, str] | None = None
) -> T:
    """Returns the result of `retry`. Raises `DeployError` (`what`: could not be done) if the host refuses.

    `remedies`: of this request, by status; they go before those of the host.
    """
    try:
        return await retry(request)
    except Exception as error:
        # SDKs hand out a page that a proxy answers with as if it were the text of an answer.
        if isinstance(error, JSONDecodeError) or (isinstance(error, AttributeError) and isinstance(error.obj, str)):
            raise DeployError(f"{host.name} answers with {_PAGE}", _REMEDIES[200]) from error
        status = status_of(error)
        if status is None:
            raise
        hide_secrets(error)
        otherwise = f"Give the same command again. {GOES_ON}" if status >= 500 else "See docs/deploy.md."
        remedy = {**_REMEDIES, **host.remedies, **(remedies or {})}.get(status, otherwise)
        if status == 0 and getproxies():
            remedy = f"Requests go through the proxy of the environment (HTTPS_PROXY). {remedy}"
        words = without_secrets(_words(error))
        raise DeployError(f"{what}: {status} {words}" if status > 0 else f"{what}: {words}", remedy) from error


def _words(error: BaseException) -> str:
    """The host's own message, without its SDK's wrapping."""
    response: Any = getattr(error, "response", None)
    text = str(getattr(response, "text", "")) or (str(error).splitlines() or [type(error).__name__])[0]
    try:
        body: Any = json.loads(text)
    except ValueError:
        return _PAGE if text.lstrip().lower().startswith(("<!doctype", "<html")) else text[:300]
    for name in ("error", "message", "detail"):
        if isinstance(body, dict):
            body = cast("dict[str, Any]", body).get(name, cast("Any", body))
    return body[:300] if isinstance(body, str) else text[:300]
