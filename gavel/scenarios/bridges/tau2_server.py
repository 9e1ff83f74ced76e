"""A server of τ²-bench's records for one episode.

Its tools take the episode's records from `state_key`, answer with an envelope, and can be asked to reset the records or
for the log of calls. An agent is shown none of that: its tools have τ²-bench's own arguments and results.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gavel.scenarios.bridges.mcp import McpError, McpServer, without_package

if TYPE_CHECKING:
    from gavel.scenarios.bridges.mcp_session import McpSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Server(McpServer):
    domain: str
    case: str
    """Id of the task."""

    @asynccontextmanager
    async def session(self) -> "AsyncGenerator[McpSession]":
        """A session with fresh records. Raises `McpError`."""
        try:
            from gavel.scenarios.bridges.tau2_session import Tau2Session
        except ModuleNotFoundError as error:
            raise without_package() from error
        async with Tau2Session(self, self.domain, self.case) as session:
            yield session


async def records_digest(folder: Path) -> str:
    """A digest of the records that a server left in its folder. Raises `McpError` when there are none."""
    return await asyncio.to_thread(_digest, folder)


def _digest(folder: Path) -> str:
    files = list(folder.glob("*.json"))
    try:
        (file,) = files
        records = json.loads(file.read_text("utf-8"))["db"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise McpError(
            f"the server of τ²-bench left {len(files)} files of records, not one that can be read."
        ) from error
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
