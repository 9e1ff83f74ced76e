"""The interface of deployment hosts, how an address selects one, and how its API is called.

    host = open_host("vllm:http://10.0.0.2:8000", path_map="/home/me/runs=/mnt/runs")

A module of a host has `open_host(place, **options)`, where `place` is what follows the colon (empty without one). The
options are keyword arguments that JSON can hold; keys and tokens come from the environment, never through them. What
makes another deployment of the same adapter belongs to the place, not to the options.

A request that reads, replaces or deletes is sent again while the host is busy or broken. One that creates is sent again
only after a 429: after a 5xx or a cut line it may have been carried out, so the thing is looked up by its name first.
"""

import asyncio
import importlib
import inspect
import json
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any, Protocol, TypeVar, cast
from urllib.request import getproxies

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from gavel.base import entry_points
from gavel.base.extras import install_line
from gavel.base.network import TRANSPORT_ERRORS, is_on_this_machine, server_address
from gavel.base.secrets import hide_secrets, without_secrets
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

logger = logging.getLogger(__name__)
T = TypeVar("T")
HOSTS = {
    name: f"gavel.trainer.deploy.{name}" for name in ("vllm", "together", "fireworks", "wandb", "huggingface", "ollama")
}
Report = Callable[[str], None]
"""Hears one line about what is being done, for the user to read."""
PAUSE = 5.0
"""Seconds between two looks at what a host does in its own time."""
PATIENCE = 120.0
"""Seconds that one request is repeated."""
GOES_ON = "The same command goes on where it was."
PLAIN_TARGETS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
"""The layers that hosted services take adapters of."""
_SAYS_AGAIN = 60.0
_TOLD_AFTER = 3
"""Attempts that failed, after which it is told that the request is repeated."""
_LONGEST_PAUSE = 60.0
_backoff = wait_random_exponential(multiplier=0.25, max=20)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The address and model id under which the policy of one step is served, OpenAI-compatible."""

    host: "DeployHost"
    record: DeploymentRecord
    base_url: str
    model_id: str
    """The value for `model` in a request."""
    key_variable: str | None
    """The environment variable that holds the API key; None for a server without one."""

    @property
    def id(self) -> str:
        """Id of its record, which `gavel undeploy` takes."""
        return self.record.id

    @property
    def stop_hint(self) -> str:
        """A sentence that states the cost and how to stop it."""
        return self.host.costs(self.record)

    def openai_client(self) -> AsyncOpenAI:
        """A client of the endpoint; its key is read from the environment now. Raises `DeployError` without one."""
        key = key_of(self.key_variable) if self.key_variable else "none"  # the openai package wants one
        http_client = DefaultAsyncHttpxClient(trust_env=not is_on_this_machine(self.base_url))  # no proxy for loopback
        return AsyncOpenAI(base_url=self.base_url, api_key=key, http_client=http_client)

    async def undeploy(self) -> None:
        """Stops serving and removes what was made for it; doing so again changes nothing. Raises `DeployError`."""
        from gavel.trainer.deploy.deploy import undeploy

        await undeploy(self.record, host=self.host)


class DeployHost(Protocol):
    """A service or server. Every method raises `DeployError` with what to do next."""

    name: str
    place: str
    """The part of the address after the colon, normalized by the host."""
    remedies: Mapping[int, str]
    """Remedies for the host's refusals by HTTP status, where they differ from the common ones."""

    def check(self, adapter: AdapterFacts) -> list[str]:
        """Why the host does not take this adapter, each with what would fit; asks nothing of the host's network."""
        ...

    async def deploy(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Deployment:
        """Uploads and serves the adapter, going on with what is there by the names of `record`; makes nothing twice."""
        ...

    async def status(self, record: DeploymentRecord) -> str:
        """The deployment's state at the host, in a few words."""
        ...

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        """Removes what was made; what is gone already is no error.

        Of a half-made deployment too: what a stage was begun for is looked up by its name.
        """
        ...

    def costs(self, record: DeploymentRecord) -> str:
        """A sentence that states the cost while deployed, and how to stop it."""
        ...


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
) -> list[str]:
    """Why a service does not take an adapter. `takes`: what it serves beyond plain LoRA. `targets` None: any layer."""
    found: list[str] = []
    if adapter.rank not in ranks:
        found.append(f"its rank is {adapter.rank}; {service} takes ranks {ranks[0]} to {ranks[-1]} (--lora-rank)")
    if targets is not None and (others := sorted(set(adapter.targets) - set(targets))):
        found.append(f"it adapts {', '.join(others)}; {service} takes {', '.join(sorted(targets))} (--lora-target)")
    if special := [each for each in adapter.special if each not in takes]:
        found.append(f"it has {', '.join(special)}, which {service} does not serve; merge it: gavel export")
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


async def poll_until(look: Callable[[], Awaitable[tuple[T | None, str]]], what: str, report: Report) -> T:
    """The first result of `look` that is not None; its second value is the state, reported when it changes.

    The caller bounds the wait: `deploy` and `undeploy` run a host within one deadline.
    """
    told, silent = "", 0.0
    while True:
        found, state = await look()
        if found is not None:
            return found
        if state != told or silent >= _SAYS_AGAIN:
            report(f"waiting for {what}: {state}")
            told, silent = state, 0.0
        await asyncio.sleep(PAUSE)
        silent += PAUSE


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


async def retry(
    request: Callable[[], Awaitable[T]],
    *,
    creates: bool = False,
    find: Callable[[], Awaitable[T | None]] | None = None,
    patience: float | None = None,
) -> T:
    """Returns the result of `request`, retried on transient errors for `patience` seconds; then raises the last one.

    `creates`: the request is not idempotent, so after a 5xx or a cut connection `find` looks up whether it succeeded;
    without `find` the error is raised.
    """
    limit = PATIENCE if patience is None else patience

    def again(error: BaseException) -> bool:
        status = status_of(error)
        passes = status is not None and (status in (0, 408, 425, 429) or status >= 500)
        return passes and (not creates or find is not None or status == 429)

    def tell(state: RetryCallState) -> None:
        if state.attempt_number == _TOLD_AFTER and state.outcome is not None:
            said = without_secrets(str(state.outcome.exception()))[:300]
            logger.warning("no answer yet (%s); trying again for %.0f s", said, limit)

    attempts = AsyncRetrying(
        retry=retry_if_exception(again), wait=_pause, stop=stop_before_delay(limit), before_sleep=tell, reraise=True
    )
    async for attempt in attempts:
        with attempt:
            if attempt.retry_state.attempt_number > 1 and creates and find is not None:
                found = await find()
                if found is not None:
                    return found
            return await request()
    raise AssertionError("tenacity gives a result or raises")


def _pause(state: RetryCallState) -> float:
    """Seconds: the host's Retry-After, or exponential backoff with jitter."""
    response: Any = getattr(state.outcome and state.outcome.exception(), "response", None)
    try:
        return min(max(0.0, float(response.headers["retry-after"])), _LONGEST_PAUSE)
    except (AttributeError, KeyError, TypeError, ValueError):
        return _backoff(state)


async def ask(
    what: str,
    request: Callable[[], Awaitable[T]],
    *,
    creates: bool = False,
    find: Callable[[], Awaitable[T | None]] | None = None,
    remedies: Mapping[int, str] | None = None,
) -> T:
    """Returns the result of `retry`. Raises `DeployError` (`what`: could not be done) if the host refuses."""
    try:
        return await retry(request, creates=creates, find=find)
    except Exception as error:
        if status_of(error) is None or isinstance(error, DeployError):
            raise
        raise refused(what, error, remedies) from error


async def make_once(
    record: DeploymentRecord,
    what: str,
    find: Callable[[], Awaitable[T | None]],
    make: Callable[[], Awaitable[T]],
    remedies: Mapping[int, str] | None = None,
) -> T:
    """What `find` finds by its name, else what `make` makes: nothing is made twice."""
    found = await ask(what, find)
    record.begin()
    return found or await ask(what, make, creates=True, find=find, remedies=remedies)


async def unless_gone(request: Callable[[], Awaitable[T]]) -> T | None:
    """Returns the result of a request; None if the host replies 404."""
    try:
        return await request()
    except Exception as error:
        if status_of(error) == 404:
            return None
        raise


async def remove(what: str, request: Callable[[], Awaitable[Any]], report: Report) -> None:
    """Removes what may be gone already, and waits while what is being stopped still refuses it (409, 412)."""

    async def once() -> tuple[bool | None, str]:
        try:
            await retry(request)
        except Exception as error:
            status = status_of(error)
            if status is None:
                raise
            if status in (409, 412):
                return None, "it is in use still"
            if status != 404:
                raise refused(f"{what} cannot be removed", error) from error
            return False, ""
        return True, ""

    if await poll_until(once, f"the end of {what}", report):
        report(f"removed {what}")


class HostRefusal(DeployError):
    """A host's answer that is an error, for which it may have a remedy of its own."""

    def __init__(self, message: str, remedy: str, status: int) -> None:
        super().__init__(message, remedy)
        self.status = status


def refused(what: str, error: BaseException, remedies: Mapping[int, str] | None = None) -> DeployError:
    """The error for a user: `what` could not be done, what the host says, and what to do.

    `remedies`: of this request, by status; they go before those of the host.
    """
    status = status_of(error) or 0
    hide_secrets(error)
    message = f"{what}: {f'{status} ' if status else ''}{without_secrets(_words(error))}"
    if remedies and status in remedies:
        return DeployError(message, remedies[status])
    otherwise = f"Give the same command again. {GOES_ON}" if status >= 500 else "See docs/deploy.md."
    remedy = _REMEDIES.get(status, otherwise)
    if status == 0 and getproxies():
        remedy = f"Requests go through the proxy of the environment (HTTPS_PROXY). {remedy}"
    return HostRefusal(message, remedy, status)


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


@contextmanager
def explain_errors(host: DeployHost) -> Generator[None]:
    """Adds the host's own remedy to a refusal raised inside, and reports an HTML page as such.

    SDKs hand out a page that a proxy answers with as if it were the text of an answer.
    """
    try:
        yield
    except HostRefusal as error:
        raise DeployError(error.message, host.remedies.get(error.status, error.remedy)) from error
    except (AttributeError, JSONDecodeError) as error:
        if isinstance(error, AttributeError) and not isinstance(error.obj, str):
            raise
        raise DeployError(f"{host.name} answers with {_PAGE}", _REMEDIES[200]) from error


_PAGE = "a web page, not an answer of its API: a proxy or another server answers there"
_REMEDIES = {
    200: f"Check the address, and a proxy or a login page before it. {GOES_ON}",
    0: f"Check the address and the network. {GOES_ON}",
    401: f"Check the API key in the environment or in .env: it is wrong, or has expired. {GOES_ON}",
    402: f"Add credit to the account. {GOES_ON}",
    403: f"The key may not do this: check its rights and its project. {GOES_ON}",
    429: f"Wait a minute. {GOES_ON}",
}
