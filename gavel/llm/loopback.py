"""Whether an address is this machine's own: what is asked there goes through no proxy of the environment."""

import ipaddress
import os
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_on_this_machine(url: str) -> bool:
    """Whether the host of a URL is this machine's own."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


_NAMES = ("localhost", "127.0.0.1", "::1")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """`NO_PROXY` and `no_proxy` of an environment, extended by this machine's names."""
    given = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    hosts = list(dict.fromkeys(host.strip() for host in given if host.strip()))
    shown = "*" if "*" in hosts else ",".join([*hosts, *(name for name in _NAMES if name not in hosts)])
    return {"NO_PROXY": shown, "no_proxy": shown}


def pass_proxies() -> None:
    """Lets foreign HTTP clients of this process, and its children, reach this machine past a proxy of the environment.

    For clients that are not made here, such as LiteLLM's. Does nothing where the environment names no proxy.
    """
    if any(os.environ.get(name) or os.environ.get(name.lower()) for name in _PROXIES):
        os.environ.update(past_proxies(os.environ))
