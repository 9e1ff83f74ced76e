"""A port of a cluster's first node on this machine's loopback, by ssh, which is started again whenever it ends."""

import asyncio
import contextlib
import logging
import shutil
import socket

from gavel.trainer.backends.skypilot.cluster_settings import ClusterError

logger = logging.getLogger(__name__)

_ALIVE_SECONDS = 15
"""Between two signs of life; without three of them ssh ends."""
_CONNECT_SECONDS = 20
_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 30.0
"""Seconds until ssh is started again."""
_END_SECONDS = 5.0


class SshTunnel:
    """`url` leads to the port for as long as the tunnel is open and ssh gets through."""

    def __init__(self, name: str, port: int) -> None:
        """`name`: of the node in ssh's own configuration. Raises `ClusterError` without ssh."""
        if shutil.which("ssh") is None:
            raise ClusterError("there is no ssh here", "Install it (Debian: apt install openssh-client).")
        self._name = name
        self._port = port
        self._local = free_port()
        self.url = f"http://127.0.0.1:{self._local}"
        self._kept = asyncio.create_task(self._keep())

    async def close(self) -> None:
        self._kept.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._kept

    async def _keep(self) -> None:
        wait = _SHORTEST_WAIT
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            said = await self._run()
            wait = _SHORTEST_WAIT if loop.time() - began > _LONGEST_WAIT else min(2 * wait, _LONGEST_WAIT)
            logger.info("ssh to %s ended: %s; again in %.0f s", self._name, said or "it said nothing", wait)
            await asyncio.sleep(wait)

    async def _run(self) -> str:
        """Runs ssh until it ends; returns its last words."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(_CONNECT_SECONDS),
            "ExitOnForwardFailure": "yes",
            "ServerAliveInterval": str(_ALIVE_SECONDS),
            "ServerAliveCountMax": "3",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        forward = f"127.0.0.1:{self._local}:127.0.0.1:{self._port}"
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-N", *given, "-L", forward, "--", self._name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C finishes a step first, which needs the tunnel
        )
        try:
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _END_SECONDS)
            if process.returncode is None:
                process.kill()
        return said.decode(errors="replace").strip().rpartition("\n")[2]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
