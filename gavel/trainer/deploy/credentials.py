"""What a host is asked with: keys from the environment, and the address of a server, which never holds one."""

import os

import httpx

from gavel.trainer.deploy.errors import DeployError


def key_of(variable: str, remedy: str = "Set it in the environment or in .env.") -> str:
    """The key as a header holds it. Raises `DeployError`, which does not tell it, for none or an impossible one."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise DeployError(f"{variable} is not set", remedy)
    if not all("!" <= character <= "~" for character in key):
        raise DeployError(
            f"{variable} has characters that no key has: a space, a line's end, or a letter beyond ASCII",
            "Copy it again from the host's console.",
        )
    return key


def server_address(given: str, example: str, key_variable: str | None) -> str:
    """The address of a server without a slash at its end. Raises `DeployError`, which tells no password."""
    try:
        url = httpx.URL(given.strip())
    except httpx.InvalidURL as error:
        shown = "what was given" if "@" in given else repr(given)
        raise DeployError(f"{shown} is no address of a server: {error}", f"Give {example}.") from error
    if url.userinfo:
        keep = f"Set {key_variable}: it is read from the environment." if key_variable else "Leave it out."
        raise DeployError(f"the address of the server at {url.host} holds a user or password", keep)
    if url.query or url.fragment:
        raise DeployError(f"the address of the server at {url.host} has something behind ? or #", f"Give {example}.")
    if url.scheme not in ("http", "https") or not url.host or (url.port is not None and not 0 < url.port < 65536):
        raise DeployError(f"{given!r} is no address of a server", f"Give {example}.")
    return str(url).rstrip("/")
