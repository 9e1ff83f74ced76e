"""LocalBackend: policy, learner, engine, endpoint and checkpoints, wired together in this process."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from scenarios.errors import GavelError
from scenarios.trajectory import Trajectory, TrajectoryGroup
from trainer.backend import Endpoint, TrainResult
from trainer.batch import make_batch
from trainer.config import TrainConfig
from trainer.endpoint import EndpointServer
from trainer.engines.transformers import TransformersEngine
from trainer.learner import Learner
from trainer.model import Model, NotRegisteredError, TrainableModel
from trainer.policy import Policy, sampler_copy
from trainer.run_directory import RunDirectory, runs_root
from trainer.scoring import trained_logprobs
from trainer.tokens import TokenSequence

_PROOF_TOKENS = 256
_PROOF_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Nats by which one token's log-prob may differ between sampler and learner, by rounding alone."""

logger = logging.getLogger(__name__)


class PublishError(GavelError):
    """The sampler does not follow the adapter that was published."""


@dataclass(slots=True)
class _Run:
    directory: RunDirectory
    step: int = 0
    policy: Policy | None = None
    learner: Learner | None = None
    engine: TransformersEngine | None = None
    server: EndpointServer | None = None


class LocalBackend:
    """Trains and serves models on this machine; also an async context manager."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        slots: int = 128,
        max_context: int = 4096,
    ) -> None:
        """`path`: where runs are kept (default GAVEL_RUNS, else `runs`). `port` 0 takes a free one.

        `slots` conversations of up to `max_context` tokens are held in the engine's cache at once.
        """
        self._root = runs_root(path)
        self._host = host
        self._port = port
        self._slots = slots
        self._max_context = max_context
        self._runs: dict[tuple[str, str], _Run] = {}

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def register(self, model: Model) -> None:
        if (model.project, model.name) in self._runs:
            return
        run = _Run(await asyncio.to_thread(RunDirectory, self._root, model.project, model.name))
        try:
            if isinstance(model, TrainableModel):
                await asyncio.to_thread(self._load, run, model)
        except BaseException:
            _close(run)
            run.directory.discard_if_new()
            raise
        self._runs[model.project, model.name] = run

    async def train(self, model: TrainableModel, groups: list[TrajectoryGroup], config: TrainConfig) -> TrainResult:
        run = self._run(model)
        return await asyncio.to_thread(self._train, run, groups, config)

    async def log(self, model: Model, groups: list[TrajectoryGroup], split: str) -> dict[str, float]:
        run = self._run(model)
        await asyncio.to_thread(run.directory.trajectories(split, run.step).extend, groups)
        means = _means(groups)
        run.directory.metrics.log(run.step, split, means)
        return means

    def endpoint(self, model: TrainableModel) -> Endpoint:
        server = self._run(model).server
        assert server is not None
        return Endpoint(server.base_url, "gavel")

    def step(self, model: Model) -> int:
        return self._run(model).step

    def checkpoints(self, model: TrainableModel) -> list[int]:
        return self._run(model).directory.checkpoints.steps()

    def record(self, model: Model, values: Mapping[str, float | str], split: str) -> None:
        run = self._run(model)
        run.directory.metrics.log(run.step, split, values)

    def history(self, model: Model, split: str | None = None) -> list[dict[str, Any]]:
        return self._run(model).directory.metrics.rows(split)

    async def delete_checkpoints(self, model: TrainableModel, steps: Iterable[int]) -> None:
        checkpoints = self._run(model).directory.checkpoints
        for step in steps:
            await asyncio.to_thread(checkpoints.delete, step)

    def parameter_count(self, model: TrainableModel) -> int:
        """Parameters of the base model."""
        policy = self._run(model).policy
        assert policy is not None
        return policy.parameter_count

    async def close(self) -> None:
        for run in self._runs.values():
            await asyncio.to_thread(_close, run)
        self._runs.clear()

    def _run(self, model: Model) -> _Run:
        try:
            return self._runs[model.project, model.name]
        except KeyError:
            raise NotRegisteredError(
                f"the model {model.name} is not registered here", "First: await model.register(backend)"
            ) from None

    def _load(self, run: _Run, model: TrainableModel) -> None:
        policy = Policy(model.base_model, model.lora, model.renderer)
        run.directory.describe(
            {
                "name": model.name,
                "project": model.project,
                "base_model": model.base_model,
                "lora": model.lora.model_dump(),
            }
        )
        run.policy, run.learner = policy, Learner(policy)
        max_context = min(self._max_context, policy.max_context)
        run.engine = TransformersEngine(
            sampler_copy(policy, model.base_model), slots=self._slots, max_context=max_context
        )
        self._resume(run)
        run.engine.publish(policy.merged_weights(), run.step)
        run.server = EndpointServer(
            run.engine,
            policy.renderer,
            lambda token: policy.tokenizer.decode([token]),
            model=model.name,
            max_context=max_context,
            host=self._host,
            port=self._port,
        )

    def _resume(self, run: _Run) -> None:
        assert run.policy is not None
        assert run.learner is not None
        checkpoints = run.directory.checkpoints
        latest = checkpoints.latest()
        if latest is None:
            return
        path = checkpoints.path(latest)
        run.policy.load_adapter(path)
        state = torch.load(path / "trainer_state" / "state.pt", weights_only=True)
        run.learner.restore(state["learner"])
        run.step = latest
        if not any(row["step"] == latest for row in run.directory.metrics.rows("train")):
            run.directory.metrics.log(latest, "train", state["metrics"])  # killed between checkpoint and metrics

    def _train(self, run: _Run, groups: list[TrajectoryGroup], config: TrainConfig) -> TrainResult:
        assert run.policy is not None
        assert run.learner is not None
        assert run.engine is not None
        batch = make_batch(groups, config)
        metrics: dict[str, float] = {
            **_means(groups),
            "groups_trained": batch.groups,
            "trajectories_trained": batch.trajectories,
            "tokens_trained": batch.trained_tokens,
        }
        for reason, count in (batch.left_out_groups + batch.left_out_members).items():
            metrics[f"left_out/{reason}"] = count
        trained = bool(batch.sequences)
        if trained:
            metrics |= run.learner.step(batch, config)
        step = run.step + 1
        self._save(run, step, metrics)
        run.engine.publish(run.policy.merged_weights(), step)
        if trained:
            metrics["publish_gap"] = _prove_live(run.policy, run.engine, batch.sequences[0].tokens)
        run.step = step
        run.directory.trajectories("train", step).extend(groups)
        run.directory.metrics.log(step, "train", metrics)
        return TrainResult(step, trained, None if trained else batch.why_empty(), metrics)

    def _save(self, run: _Run, step: int, metrics: dict[str, float]) -> None:
        assert run.policy is not None
        assert run.learner is not None
        policy, learner = run.policy, run.learner

        def write(directory: Path) -> None:
            policy.save_adapter(directory)
            (directory / "trainer_state").mkdir()
            torch.save({"learner": learner.state(), "metrics": metrics}, directory / "trainer_state" / "state.pt")

        run.directory.checkpoints.save(step, write)


def _prove_live(policy: Policy, engine: TransformersEngine, tokens: TokenSequence) -> float:
    """The largest gap between sampler and learner on one sequence; raises `PublishError` when it is no rounding."""
    ids = tokens.token_ids[:_PROOF_TOKENS]
    whole = TokenSequence(ids, [False] + [True] * (len(ids) - 1), [0.0] * len(ids), [1.0] * len(ids))
    with torch.no_grad():
        learned = trained_logprobs(policy, [whole])
    served = torch.tensor(engine.score(ids), device=learned.device)
    gap = (learned - served).abs().max().item()
    if gap > _PROOF_TOLERANCE[next(policy.model.parameters()).dtype]:
        raise PublishError(
            f"after publishing, sampler and learner differ by {gap:.3g} nats on a token",
            "The adapter did not become live; register the model again to go on from the last checkpoint.",
        )
    return gap


def _means(groups: list[TrajectoryGroup]) -> dict[str, float]:
    """Means over all trajectories (reward: of the scored ones), the share that failed, and counts."""
    values: dict[str, list[float]] = {}
    trajectories: list[Trajectory] = [trajectory for group in groups for trajectory in group]
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            values.setdefault(name, []).append(float(value))
        if trajectory.reward is not None:
            values.setdefault("reward", []).append(trajectory.reward)
        values.setdefault("failed", []).append(float(trajectory.status == "failed"))
    means = {name: fmean(numbers) for name, numbers in values.items()}
    counts = {"trajectories": len(trajectories), "exceptions": sum(len(group.exceptions) for group in groups)}
    return means | {name: float(count) for name, count in counts.items()}


def _close(run: _Run) -> None:
    closing: list[Any] = [run.server, run.engine, run.directory]
    for part in closing:
        if part is not None:
            part.close()
