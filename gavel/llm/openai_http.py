"""The HTTP library of OpenAI's client, of which its timeouts, connections, requests and answers must be."""

import importlib
from typing import TYPE_CHECKING

from openai import DefaultAsyncHttpxClient

__all__ = ["openai_httpx"]

if TYPE_CHECKING:
    import httpx2 as openai_httpx
else:
    _kind = next(kind for kind in DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    openai_httpx = importlib.import_module(_kind.__module__.partition(".")[0])
    """httpx2 from version 3 of the client on, httpx before."""
