"""Models as users hold them: one that is only prompted, and one that is trained.

A model is its spec and the calls that go to the backend it is registered with.
"""

import asyncio
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from openai import AsyncOpenAI, DefaultAioHttpClient
from pydantic import ConfigDict, Field, PrivateAttr

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine
from gavel.llm.failures import openai_httpx
from gavel.scenarios.group import TrajectoryGroup, as_groups
from gavel.scenarios.trajectory import Trajectory, as_metrics
from gavel.trainer.backends.protocol import Backend, NotRegisteredError, TrainResult
from gavel.trainer.config import ExportDtype, ExportForm, SftConfig, TrainConfig
from gavel.trainer.deploy.deploy import BEST_BY, deploy, exported_facts
from gavel.trainer.deploy.host import Deployment, Report
from gavel.trainer.engines.protocol import deadline as turn_deadline
from gavel.trainer.model_spec import ModelSpec, TrainableSpec, described_fields
from gavel.trainer.runs.checkpoints import chosen_step, steps_to_keep
from gavel.trainer.runs.run_directory import runs_root
from gavel.trainer.runs.stores import StorageError, description, open_store, pull_checkpoint, split_place
from gavel.trainer.serving.capture import Capture
from gavel.trainer.serving.in_process import InProcessClient

logger = logging.getLogger(__name__)

_REQUEST_TIMEOUT = 600.0
_REPEATS = 2
"""OpenAI's own default."""
_LONGEST_TURN = 131_072
"""Tokens of a turn that a client of a trained policy waits for; the engine itself ends what hangs much earlier."""


class Model(ModelSpec):
    """A model behind an OpenAI-compatible API, not trained: for prompted baselines."""

    model_config = ConfigDict(frozen=False)

    inference_model_name: str | None = None
    """The model's name at the API; by default `name`."""
    inference_base_url: str | None = None
    """By default OpenAI's."""
    inference_api_key: str | None = Field(default=None, repr=False)

    _backend: Backend | None = PrivateAttr(default=None)
    _request_seconds: float = PrivateAttr(default=_REQUEST_TIMEOUT)
    _clients: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI]" = PrivateAttr(
        default_factory=weakref.WeakKeyDictionary["asyncio.AbstractEventLoop", "AsyncOpenAI"]
    )

    async def register(self, backend: Backend) -> None:
        """Makes the model ready in `backend`; a trainable one resumes from its newest checkpoint.

        Raises `TypeError` for what is no backend.
        """
        if isinstance(backend, type) or not hasattr(backend, "register"):
            raise TypeError(f"{backend!r} is no backend; write: await model.register(gavel.LocalBackend())")
        await backend.register(self)
        self._backend = backend
        self.inference_base_url, self.inference_api_key = self._address()
        self._clients.clear()  # the address may have changed; the old clients close with their loop

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
            self._clients[loop] = InProcessClient(
                base_url=base_url,
                api_key=api_key,
                timeout=openai_httpx.Timeout(self._request_seconds, connect=_REQUEST_TIMEOUT),
                max_retries=self._repeats(),
                # httpx's own pool takes time quadratic in the number of rollouts. No proxy is used for loopback.
                http_client=DefaultAioHttpClient(
                    trust_env=not is_on_this_machine(base_url or ""),
                    verify=openai_httpx.create_ssl_context() if (base_url or "").startswith("https://") else True,
                ),
            )
            closer = loop.create_task(_close_with_loop(self._clients[loop]))
            _closers.add(closer)
            closer.add_done_callback(_closers.discard)
        return self._clients[loop]

    def get_inference_name(self) -> str:
        """The value for `model` in a request."""
        return self.inference_model_name or self.name

    def litellm_completion_params(self) -> dict[str, Any]:
        """Arguments of `litellm.acompletion` that reach this model."""
        base_url, api_key = self._address()
        return {"model": f"hosted_vllm/{self.get_inference_name()}", "base_url": base_url, "api_key": api_key}

    async def get_step(self) -> int:
        """Training steps done so far; 0 for a model that is not trained."""
        return self.backend.step(self)

    async def log(
        self,
        groups: Iterable[TrajectoryGroup | Trajectory] | TrajectoryGroup = (),
        split: str = "val",
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Stores trajectories, their mean metrics and further `metrics` under a step, by default the current one;
        returns all of these metrics.

        Raises `GavelError` for "train" of a model that is trained: its steps store their own.
        """
        if split == "train" and isinstance(self, TrainableSpec):
            raise GavelError(
                'the split "train" is of the training steps, which store their groups and metrics themselves',
                'Leave the call out, or log under another split: log(groups, "explored").',
            )
        return await self.backend.log(self, as_groups(groups), split, step, metrics and as_metrics(metrics))

    def _address(self) -> tuple[str | None, str | None]:
        return self.inference_base_url, self.inference_api_key

    def _repeats(self) -> int:
        return _REPEATS


class TrainableModel(Model, TrainableSpec):
    """A base model with a LoRA adapter that is trained on judged groups.

    `register` fills `inference_base_url` and `inference_api_key` for clients of your own.
    """

    model_config = ConfigDict(frozen=False)

    _request_seconds: float = PrivateAttr(default=turn_deadline(_LONGEST_TURN))

    async def train(
        self,
        groups: Iterable[TrajectoryGroup] | TrajectoryGroup,
        config: TrainConfig | Mapping[str, Any] | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
    ) -> TrainResult:
        """One training step on judged groups; the new adapter is saved and live when this returns.

        `config`: a `TrainConfig`, or its fields in a dict. `metrics` join those that the step is logged with. Raises
        `GavelError` for trajectories outside of groups (rewards are compared within a group), and for metrics that are
        no numbers, before the step.
        """
        groups, metrics = as_groups(groups, single=False), as_metrics(metrics)
        members = [member for group in groups for member in group]
        if not members:
            logger.warning("no trajectory was given to train on: an after_each function returns the group it scored")
        elif all(member.reward is None and member.judgement is None for member in members):
            logger.warning("no trajectory has a reward: score the groups first, as by gavel.ruler_score_group")
        elif not any(next(member.choices(), None) for member in members):
            logger.warning("no trajectory has a sampled turn: append the reply's choice itself, not its text")
        return await self.backend.train(self, groups, _settings(TrainConfig, config), metrics)

    async def train_sft(
        self,
        trajectories: Iterable[TrajectoryGroup | Trajectory] | TrajectoryGroup,
        config: SftConfig | Mapping[str, Any] | None = None,
    ) -> TrainResult:
        """One supervised training step: raises the probability of every assistant turn, whatever the rewards.

        Trains the `Choice`s of a history, on their own token ids where they carry them; in a history without any, its
        assistant messages. The optimiser state is shared with `train`. Trajectories that cannot be trained are counted
        in the result; a malformed message raises `DemonstrationError`.
        """
        members = [trajectory for group in as_groups(trajectories) for trajectory in group]
        return await self.backend.train_sft(self, members, _settings(SftConfig, config))

    def get_inference_name(self) -> str:
        """`name@step` of the live policy."""
        return f"{self.name}@{self.backend.step(self)}"

    async def delete_checkpoints(
        self,
        best_checkpoint_metric: str | Sequence[str] = "val/reward",
        keep_last: int = 1,
        keep_best: int = 1,
    ) -> None:
        """Deletes all checkpoints but the newest `keep_last` and the `keep_best` with the highest `split/metric` in
        metrics.jsonl (from a step's last row that has it; the newer among equals), by each of several metrics.

        The current step's checkpoint always stays.
        """
        live = self.backend.step(self)
        saved = [step for step in self.backend.checkpoints(self) if step <= live]  # a later one is damaged
        metrics = [best_checkpoint_metric] if isinstance(best_checkpoint_metric, str) else best_checkpoint_metric
        kept = {live, *steps_to_keep(saved, {}, keep_last=keep_last, keep_best=0)}
        for split, _, metric in (each.partition("/") for each in metrics):
            values = {row["step"]: row[metric] for row in self.backend.history(self, split) if metric in row}
            kept |= steps_to_keep(saved, values, keep_last=0, keep_best=keep_best)
        await self.backend.delete_checkpoints(self, [step for step in saved if step not in kept])

    async def export(
        self,
        form: ExportForm = "merged",
        *,
        dtype: ExportDtype = "auto",
        step: int | None = None,
        out: str | Path | None = None,
    ) -> Path:
        """Writes the policy of `step` (default: the live one) as a directory for other programs, and returns it.

        merged: a plain model of transformers, with the adapter in its weights, whose log-probs are the policy's; its
        weights have `dtype`, with auto that of the base model's own files. adapter: the PEFT adapter with tokenizer and
        card. `out` defaults to a directory under `exports` of the run. Raises `ExportError` when something else is
        there.
        """
        return await self.backend.export(self, form, dtype, step, None if out is None else Path(out))

    async def push(
        self, address: str, step: int | Literal["latest", "best"] = "latest", *, best_by: str = BEST_BY
    ) -> str:
        """Copies a checkpoint to a store, under `project/name`: `s3://bucket/prefix`, `hf://owner/repository`
        or a directory.

        Returns where it is there. A push that was cut off goes on where it was. best: the step with the highest
        `best_by` (split/metric). Raises `StorageError`.
        """
        chosen = chosen_step(self.backend.checkpoints(self), self.backend.history(self), step, best_by)
        if chosen is None and step == "best":
            raise StorageError(
                f"no checkpoint of {self.name} has a value of {best_by}",
                'Name another with best_by=, or step="latest".',
            )
        return await self.backend.push(self, address, chosen or 0)

    async def deploy(
        self,
        host: str,
        step: int | Literal["latest", "best"] = "latest",
        *,
        smoke_test: bool = True,
        best_by: str = BEST_BY,
        deadline: float = 3600.0,
        report: Report = print,
        **options: Any,
    ) -> Deployment:
        """Serves a checkpoint at a host (vllm:http://HOST:PORT, together, …: docs/deploy.md) and proves what it serves.

        Waits for at most `deadline` seconds until it serves. `report` hears what is done and what it costs. `options`
        are those of the host; keys come from the environment. The same call after a crash goes on where it was. Raises
        `DeployError`.
        """
        facts = await exported_facts(self.backend, self, step, best_by)
        description = self.model_dump(mode="json", include=set(TrainableSpec.model_fields))
        return await deploy(
            facts.directory.parents[1],
            facts,
            host,
            description=description if smoke_test else None,
            deadline=deadline,
            report=report,
            options=options,
        )

    @classmethod
    async def pull(
        cls,
        address: str,
        step: int | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        runs: str | Path | None = None,
    ) -> Self:
        """The model that was pushed to `s3://bucket/prefix/project/name`, with its checkpoint (default: the newest).

        It goes on from there when it is registered with a `LocalBackend` on these `runs` (default GAVEL_RUNS, else
        `runs`). `project` and `name`: of the run here. Raises `StorageError`.
        """
        home, first, last = split_place(address)
        store, place = await asyncio.to_thread(open_store, home), f"{first}/{last}"
        key = project or first, name or last
        await asyncio.to_thread(pull_checkpoint, store, place, step, runs_root(runs), key)
        known = await asyncio.to_thread(description, store, place)
        return cls.model_validate(described_fields(known) | {"project": key[0], "name": key[1]})

    def capture(self, *, patience: float = 60.0) -> Capture:
        """Captures what any client and framework samples inside `async with` as one trajectory with exact tokens.

        Inside, `capture.base_url` and `capture.api_key` are for the client; after it there is `capture.trajectory`, of
        all requests with that key. At the end, requests in flight have `patience` seconds. Raises `CaptureError`.
        """
        return Capture(self.openai_client(), patience)

    def _address(self) -> tuple[str | None, str | None]:
        endpoint = self.backend.endpoint(self)
        return endpoint.base_url, endpoint.api_key

    def _repeats(self) -> int:
        return self.backend.endpoint(self).repeats


_closers: set[asyncio.Task[None]] = set()
"""References to the tasks that close clients; an event loop keeps only weak ones."""


async def _close_with_loop(client: AsyncOpenAI) -> None:
    """Waits until the event loop shuts down, which cancels its tasks, and closes the client."""
    try:
        await asyncio.Event().wait()
    finally:
        await client.close()


_Config = TypeVar("_Config", TrainConfig, SftConfig)


def _settings(kind: type[_Config], given: _Config | Mapping[str, Any] | None) -> _Config:
    if isinstance(given, kind):
        return given
    if given is None or isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        return kind(**given or {})
    name = kind.__name__
    raise GavelError(f"config is a {type(given).__name__}, not a {name}", f"Write config=gavel.{name}(…).")
