"""What Gavel uses of ollama, which is an extra."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

class ResponseError(Exception):
    error: str
    status_code: int

class AsyncClient:
    def __init__(self, host: str | None = None, **given: Any) -> None: ...
    async def create(
        self, model: str, quantize: str | None = None, *, files: Mapping[str, str], stream: Literal[True]
    ) -> AsyncIterator[Any]: ...
    async def create_blob(self, path: str | Path) -> str: ...
    async def delete(self, model: str) -> Any: ...
    async def show(self, model: str) -> Any: ...
