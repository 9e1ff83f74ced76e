"""Loopback addresses, bypassing the environment's proxy, and the errors of HTTP clients.

Clients of others raise errors of httpx or of httpx2: OpenAI's speaks through httpx2 from its version 3 on, the Hugging
Face Hub's from its version 2 on; earlier ones, LiteLLM's own and Gavel's speak through httpx.
"""

import importlib
import importlib.util
import ipaddress
import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

import httpx


def free_port() -> int:
    """A port of 127.0.0.1 that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    name = host.rstrip(".").lower()
    if name in ("localhost", "ip6-localhost", "localhost.localdomain"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_on_this_machine(url: str) -> bool:
    """Whether the host of a URL that a client asks is this machine: loopback, its name, or 0.0.0.0."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return is_loopback(host) or host in ("0.0.0.0", "::", socket.gethostname().lower())


def server_address(given: str) -> str:
    """The http(s) address of a server, without a trailing slash. Raises `ValueError`, whose message hides passwords."""
    shown = "what was given" if any(sign in given for sign in "@?#") else repr(given)
    why = "it begins with http:// or https://, and names a host"
    try:
        url = httpx.URL(given.strip())
        if url.port is not None and not 0 < url.port < 65536:
            why = f"there is no port {url.port}"
        elif url.userinfo or url.query or url.fragment:
            why = "it holds a user, password or query"
        elif url.scheme in ("http", "https") and url.host and url.raw_host.isascii() and b"%" not in url.raw_host:
            return str(url).rstrip("/")
    except httpx.InvalidURL as error:
        why = str(error)
    raise ValueError(f"{shown} is no address of a server: {why}")


_NAMES = ("localhost", "127.0.0.1", "::1")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def past_proxies(environment: Mapping[str, str], *more: str) -> dict[str, str]:
    """An environment's `NO_PROXY` and `no_proxy`, extended by this machine's names and the hosts in `more`."""
    given = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    hosts = list(dict.fromkeys(host.strip() for host in given if host.strip()))
    shown = "*" if "*" in hosts else ",".join([*hosts, *(name for name in (*_NAMES, *more) if name not in hosts)])
    return {"NO_PROXY": shown, "no_proxy": shown}


def pass_proxies(url: object = None) -> None:
    """Lets foreign HTTP clients of this process and its children reach this machine without the environment's proxy.

    For foreign clients, such as LiteLLM's. `url`: an address to be called, whose host may be another name of this
    machine. Does nothing if the environment sets no proxy.
    """
    if not any(os.environ.get(name) or os.environ.get(name.lower()) for name in PROXIES):
        return
    host = urlsplit(url).hostname if isinstance(url, str) and is_on_this_machine(url) else None
    os.environ.update(past_proxies(os.environ, *([host] if host else [])))


_LIBRARIES = [httpx]
if importlib.util.find_spec("httpx2") is not None:
    _LIBRARIES.append(importlib.import_module("httpx2"))


def exception_types(*names: str) -> tuple[type[Exception], ...]:
    """The exception classes of these names from each installed library, as a tuple for `except`."""
    return tuple(getattr(library, name) for library in _LIBRARIES for name in names)


HTTP_ERRORS = exception_types("HTTPError")
"""Errors that a request raises: no response, or an error status."""
TRANSPORT_ERRORS = exception_types("TransportError")
"""Errors of a request without a response."""
