"""Whether an address is this machine's own: what is asked there goes through no proxy of the environment."""

import ipaddress
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
