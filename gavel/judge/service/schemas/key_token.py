"""The text of an API key: `gavel_4f1c…_…`, whose first part names the key and whose last part has 256 random bits.

What is stored of a key is its SHA-256, which tells nothing of so many random bits.
"""

import hashlib
import secrets

HASH_PREFIX = "sha256:"
"""Before a hash where people see it."""
TOKEN_PREFIX = "gavel_"
_ID_BYTES = 6
_SECRET_BYTES = 32


def new_token() -> tuple[str, str]:
    """A key, and the id in it."""
    key_id = secrets.token_hex(_ID_BYTES)
    return f"{TOKEN_PREFIX}{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}", key_id


def key_id_of(token: str) -> str:
    """The id in a token; empty where it is none."""
    return token.removeprefix(TOKEN_PREFIX).partition("_")[0] if token.startswith(TOKEN_PREFIX) else ""


def token_hash(token: str) -> str:
    """Its SHA-256 as hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()
