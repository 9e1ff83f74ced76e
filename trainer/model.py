"""Models as users hold them: one that is only asked, and one that learns."""

import asyncio
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from scenarios.errors import GavelError
from scenarios.trajectory import Trajectory, TrajectoryGroup
from trainer.backend import Backend, TrainResult
from trainer.config import LoraSettings, TrainConfig

_REQUEST_TIMEOUT = 600.0


class NotRegisteredError(GavelError):
    """A model was used before it was registered with a backend."""


class Model(BaseModel):
    """A model behind an OpenAI-compatible API, not trained: for prompted baselines."""

    model_config = ConfigDict(extra="forbid")

    name: str
    project: str
    inference_model_name: str | None = None
    """What the API calls it; by default `name`."""
    inference_base_url: str | None = None
    """By default OpenAI's."""
    inference_api_key: str | None = Field(default=None, repr=False)

    _backend: Backend | None = PrivateAttr(default=None)
    _clients: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI]" = PrivateAttr(
        default_factory=weakref.WeakKeyDictionary
    )

    async def register(self, backend: Backend) -> None:
        """Makes the model ready in `backend`; a trainable one goes on from its newest checkpoint."""
        await backend.register(self)
        self._backend = backend
        self._clients.clear()  # the address may be another one now; the old clients close with their loop

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            raise NotRegisteredError(
                f"the model {self.name} has no backend yet", "First: await model.register(gavel.LocalBackend())"
            )
        return self._backend

    def openai_client(self) -> AsyncOpenAI:
        """A client of the API that serves this model; one per event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            base_url, api_key = self._address()
            self._clients[loop] = AsyncOpenAI(
                base_url=base_url,
                api_key=api_key,
                timeout=_REQUEST_TIMEOUT,
                # httpx's own pool slows down with the square of the rollouts; a proxy has no business on loopback.
                http_client=DefaultAioHttpClient(trust_env="://127.0.0.1:" not in (base_url or "")),
            )
            closer = loop.create_task(_close_with_loop(self._clients[loop]))
            _closers.add(closer)
            closer.add_done_callback(_closers.discard)
        return self._clients[loop]

    def get_inference_name(self) -> str:
        """What to pass as `model` in a request."""
        return self.inference_model_name or self.name

    def litellm_completion_params(self) -> dict[str, Any]:
        """Arguments of `litellm.acompletion` that reach this model."""
        base_url, api_key = self._address()
        return {"model": f"hosted_vllm/{self.get_inference_name()}", "base_url": base_url, "api_key": api_key}

    async def get_step(self) -> int:
        """Training steps done so far; 0 for a model that is not trained."""
        return self.backend.step(self)

    async def log(
        self, groups: Iterable[TrajectoryGroup | Trajectory] | TrajectoryGroup, split: str = "val"
    ) -> dict[str, float]:
        """Stores trajectories and their mean metrics under the current step; returns the means."""
        return await self.backend.log(self, _as_groups(groups), split)

    def _address(self) -> tuple[str | None, str | None]:
        return self.inference_base_url, self.inference_api_key


class TrainableModel(Model):
    """A base model with a LoRA adapter that learns from judged groups."""

    base_model: str
    """`embedded/returns-desk`, a directory, or a model id of the Hugging Face hub."""
    lora: LoraSettings = Field(default_factory=LoraSettings)
    renderer: str | None = None
    """Chat format of the `renderers` library; only for a model that it does not know by name."""

    async def train(
        self,
        groups: Iterable[TrajectoryGroup] | TrajectoryGroup,
        config: TrainConfig | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
    ) -> TrainResult:
        """One training step on judged groups; the new adapter is saved and live when this returns.

        `metrics` join those that the step is logged with.
        """
        return await self.backend.train(self, _as_groups(groups), config or TrainConfig(), metrics)

    def get_inference_name(self) -> str:
        """`name@step` of the live policy."""
        return f"{self.name}@{self.backend.step(self)}"

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward", keep_last: int = 1) -> None:
        """Deletes all checkpoints but the newest `keep_last` and the best by `split/metric` of metrics.jsonl."""
        kept = self.backend.checkpoints(self)
        split, _, metric = best_checkpoint_metric.partition("/")
        rows = self.backend.history(self, split)
        scored = [(row[metric], row["step"]) for row in rows if isinstance(row.get(metric), int | float)]
        best = max(scored)[1] if scored else None
        doomed = [step for step in kept[: -keep_last or None] if step != best]
        await self.backend.delete_checkpoints(self, doomed)

    def _address(self) -> tuple[str | None, str | None]:
        endpoint = self.backend.endpoint(self)
        return endpoint.base_url, endpoint.api_key


_closers: set[asyncio.Task[None]] = set()
"""Tasks that hold the open clients; an event loop itself keeps its tasks only weakly."""


async def _close_with_loop(client: AsyncOpenAI) -> None:
    """Waits until the event loop shuts down (it cancels its tasks then), and closes the client in time."""
    try:
        await asyncio.Event().wait()
    finally:
        await client.close()


def _as_groups(groups: Iterable[TrajectoryGroup | Trajectory] | TrajectoryGroup) -> list[TrajectoryGroup]:
    if isinstance(groups, TrajectoryGroup):
        return [groups]
    return [item if isinstance(item, TrajectoryGroup) else TrajectoryGroup([item]) for item in groups]
