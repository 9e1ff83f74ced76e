"""The settings of vLLM as the engine of rollouts: how many servers there are, where, and how those here are started."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator


class VllmSettings(BaseModel):
    """vLLM as the engine of rollouts: a process that is started and ended here, or a server that runs already."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    url: str | None = Field(default=None, pattern=r"^https?://")
    """Address of a running server, which must see the run directory; None starts one."""
    urls: tuple[Annotated[str, Field(pattern=r"^https?://")], ...] = ()
    """Addresses of running vLLM servers, over which rollouts are spread; they must see the run directory."""
    replicas: int = Field(default=1, ge=1)
    """vLLM servers to start on this machine, each on a GPU of its own, over which rollouts are spread."""
    api_key: SecretStr | None = None
    """The key of running servers, if they want one."""
    python: str = Field(default_factory=lambda: os.environ.get("GAVEL_VLLM_PYTHON") or sys.executable)
    """Interpreter of the environment that holds vLLM, to start it with. Default: GAVEL_VLLM_PYTHON, else this one."""
    gpu_memory_utilization: float = Field(default=0.45, gt=0, le=1)
    """Share of the GPU's memory that a started server takes; the learner needs the rest, unless it sleeps."""
    sleep: bool = False
    """Whether the server hands its GPU memory to the learner during every training step."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Until when a started server must be ready."""
    arguments: tuple[str, ...] = ()
    """Further arguments for a started server, as of `vllm serve`."""

    @field_validator("urls", mode="before")
    @classmethod
    def _split_addresses(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple):
            return texts
        return tuple(part.strip() for text in cast("Sequence[Any]", texts) for part in str(text).split(","))

    @field_validator("urls")
    @classmethod
    def _check_addresses(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if urls and info.data.get("url") is not None:
            raise ValueError("there is an url too, and urls names all servers")
        if len(urls) != len({url.rstrip("/").removesuffix("/v1") for url in urls}):
            raise ValueError("it names a server twice")
        return urls

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, replicas: int, info: ValidationInfo) -> int:
        if replicas > 1 and (info.data.get("url") or info.data.get("urls")):
            raise ValueError("replicas are started here, and there are addresses of servers that run already")
        return replicas

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the servers that run already; none starts `replicas` here."""
        return self.urls if self.url is None else (self.url,)
