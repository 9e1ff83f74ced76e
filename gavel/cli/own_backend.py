"""A server of `gavel backend` on this machine, for the time of one command."""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.wire import KEY_VARIABLE

_START_SECONDS = 300.0
_END_SECONDS = 120.0


@contextlib.asynccontextmanager
async def own_backend(runs: Path, *, slots: int, max_context: int, versions: int = 1) -> AsyncGenerator[RemoteBackend]:
    """Starts the server, and ends it. Raises `GavelError` when it does not start."""
    key = secrets.token_urlsafe(24)
    settings = {"port": 0, "runs": runs, "slots": slots, "max-context": max_context, "versions": versions}
    options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gavel", "backend", *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, KEY_VARIABLE: key},
        start_new_session=True,  # Ctrl-C is for the command, which ends its server
    )
    assert server.stdout is not None
    try:
        try:
            line = await asyncio.wait_for(server.stdout.readline(), _START_SECONDS)
        except TimeoutError:
            line = b""
        address = next((part for part in line.decode().split() if part.startswith("http://")), None)
        if address is None:
            raise GavelError("the server of `gavel backend` did not start", "Try: gavel backend --port 0")
        async with RemoteBackend(address, key) as backend:
            yield backend
    finally:
        if server.returncode is None:
            server.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait(), _END_SECONDS)
        if server.returncode is None:
            server.kill()
