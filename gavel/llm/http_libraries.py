"""httpx and httpx2: one interface in two libraries, between which clients of others move.

OpenAI's client speaks through httpx2 from its version 3 on, the Hugging Face Hub's from its version 2 on; earlier ones,
LiteLLM's own clients and Gavel's speak through httpx. So an error of such a client may be of either library.
"""

import importlib
import importlib.util

import httpx

_LIBRARIES = [httpx]
if importlib.util.find_spec("httpx2") is not None:
    _LIBRARIES.append(importlib.import_module("httpx2"))


def either(name: str) -> tuple[type[Exception], ...]:
    """The exception of this name in each library that is installed, as `except` takes them."""
    return tuple(getattr(library, name) for library in _LIBRARIES)


HTTP_ERRORS = either("HTTPError")
"""Whatever a request raises: no answer, or an error as the answer."""
TRANSPORT_ERRORS = either("TransportError")
"""There was no answer."""
