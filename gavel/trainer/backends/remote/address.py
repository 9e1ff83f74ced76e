"""Where the server of a remote backend is and what it is asked with, checked before anything is sent."""

import re

import httpx

from gavel.base.errors import GavelError
from gavel.trainer.backends.remote.wire import KEY_VARIABLE, URL_VARIABLE

_HOST_AND_PORT = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}")


class RemoteBackendError(GavelError):
    """The server of a remote backend cannot be reached, or answers what no such server answers."""


def checked_url(given: str) -> str:
    """The address without a slash at its end. Raises `RemoteBackendError`, which tells no password."""
    try:
        url = httpx.URL(given.strip())
    except httpx.InvalidURL as error:
        raise _no_address(given, str(error)) from error
    if url.scheme not in ("http", "https") or not url.host or not url.raw_host.isascii() or b"%" in url.raw_host:
        why = "it begins with http:// or https://, and names a host"
        raise _no_address(given, why, given.strip() if _HOST_AND_PORT.fullmatch(given.strip()) else "127.0.0.1:8090")
    if url.port is not None and not 0 < url.port < 65536:
        raise _no_address(given, f"there is no port {url.port}")
    if url.userinfo:
        raise RemoteBackendError(
            f"the address of the backend at {url.host} holds a user or password", f"Give the key by {KEY_VARIABLE}."
        )
    if url.query or url.fragment:
        raise _no_address(f"{url.copy_with(query=None, fragment=None)}", "what follows ? or # has no meaning there")
    return str(url).rstrip("/")


def checked_key(given: str) -> str:
    """The key as a header holds it. Raises `RemoteBackendError`, which does not tell the key."""
    key = given.strip()
    if not key:
        raise RemoteBackendError("the backend's key is not given", f"Give it, or set {KEY_VARIABLE}.")
    if not all("!" <= character <= "~" for character in key):
        raise RemoteBackendError(
            "the backend's key has characters that no HTTP header holds",
            "Make it of letters, digits and signs of ASCII, without spaces: openssl rand -hex 24",
        )
    return key


def _no_address(given: str, why: str, meant: str = "127.0.0.1:8090") -> RemoteBackendError:
    shown = repr(given) if "@" not in given else "what was given"  # a password may stand before it
    return RemoteBackendError(
        f"{shown} is no address of a backend: {why}", f"Give one, or set {URL_VARIABLE}: http://{meant}"
    )
