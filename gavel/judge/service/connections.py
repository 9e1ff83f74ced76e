"""The HTTP connections of one client: one pool for each event loop that asks, and one for code without a loop.

A connection belongs to the event loop that opened it, and a forked child must not write into those of its parent: it
would read the parent's answers. So each loop, and each process, has connections of its own.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import httpx

from gavel.base.network import is_on_this_machine

_LIMITS = httpx.Limits(max_connections=None)
_of_parents: list[object] = []
"""Pools that a forked child has from its parent, kept so that nothing closes them here."""


class Connections:
    """Pools of connections that send the same headers. May be shared by tasks, event loops, threads and processes."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """To the service at `url`: through the environment's proxy, unless it runs on this machine."""
        self._headers = dict(headers)
        self._trusts_env = not is_on_this_machine(url)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        self._of_threads: httpx.Client | None = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            _of_parents.append((dict(self._of_loops), self._of_threads))
            self._begin()

    def of_loop(self) -> httpx.AsyncClient:
        """The pool of the running event loop."""
        self._check_process()
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._of_loops.get(loop)
            if pool is None:
                pool = self._of_loops[loop] = httpx.AsyncClient(
                    headers=self._headers, limits=_LIMITS, trust_env=self._trusts_env
                )
            return pool

    def of_threads(self) -> httpx.Client:
        """The pool of code without an event loop, in any thread."""
        self._check_process()
        with self._lock:
            if self._of_threads is None:
                self._of_threads = httpx.Client(headers=self._headers, limits=_LIMITS, trust_env=self._trusts_env)
            return self._of_threads

    def close(self) -> None:
        """Closes those of code without an event loop."""
        self._check_process()
        with self._lock:
            pool, self._of_threads = self._of_threads, None
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        """Closes those of the running event loop too, and those of loops that run in other threads."""
        self.close()
        with self._lock:
            pools = dict(self._of_loops)
            self._of_loops.clear()
        here = asyncio.get_running_loop()
        for loop, pool in pools.items():
            if loop is here:
                await pool.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
