"""Sessions of the pages: what the cookie of a browser holds that signed in with an API key.

    session = issue(key, now)          "34663163….1795000000.9b2e…": the key's id in hex, the end, the signature
    is_valid(key, session, now)        until its time is over, or the key is revoked

A session is signed with the key's hash, so that every process knows it and none stores it. It is not the key: it opens
pages for some hours, and no route of the API takes it.
"""

import hashlib
import hmac

from gavel.judge.service.store.key_store import Key

SECONDS = 12 * 3600
"""That a session is valid."""


def issue(key: Key, now: float) -> str:
    """A session of this key."""
    until = int(now) + SECONDS
    return f"{key.id.encode().hex()}.{until}.{_signature(key, until)}"


def key_id_in(session: str) -> str:
    """The id of the key that a session says it is of; empty where it says none."""
    try:
        return bytes.fromhex(session.partition(".")[0]).decode()
    except ValueError:
        return ""


def is_valid(key: Key, session: str, now: float) -> bool:
    """Whether the session is one of this key, and not over."""
    _, _, rest = session.partition(".")
    until, _, signature = rest.partition(".")
    if not (until.isascii() and until.isdigit() and len(until) < 12):
        return False
    is_signed = hmac.compare_digest(signature.encode("utf-8", "replace"), _signature(key, int(until)).encode())
    return is_signed and now < int(until) and key.revoked_at is None


def _signature(key: Key, until: int) -> str:
    text = f"pages {key.id} {until}"
    return hmac.new(key.token_hash.encode(), text.encode(), hashlib.sha256).hexdigest()
