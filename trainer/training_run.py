"""One model in training: its policy, learner, engine and endpoint, over its run directory.

The checkpoint is what makes a step done: its trajectories are on disk before it, its adapter is published
after it. Whatever happens, the next start goes on from a checkpoint that is whole.
"""

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

import torch

from scenarios.errors import GavelError
from scenarios.trajectory import TrajectoryGroup
from trainer.backend import Endpoint, TrainResult
from trainer.batch import Batch, make_batch
from trainer.config import TrainConfig, VllmSettings
from trainer.endpoint import EndpointServer
from trainer.engines import DEADLINE, Engine, SamplingRequest
from trainer.engines.slots import slots_that_fit
from trainer.engines.transformers import TransformersEngine
from trainer.engines.vllm_server import Served, vllm_engine
from trainer.learner import Learner
from trainer.metrics import trajectory_means
from trainer.model import TrainableModel
from trainer.policy import Policy, load_base, source_of
from trainer.run_directory import RunDirectory
from trainer.scoring import trained_logprobs
from trainer.tokens import TokenSequence

_STATE = Path("trainer_state") / "state.pt"
_PROOF_TOKENS = 256
_PROOF_PROMPT = 24
_PROOF_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Nats by which one token's log-prob may differ between sampler and learner, by rounding alone."""


class PublishError(GavelError):
    """The sampler does not follow the adapter that was published."""


class TrainingRun:
    """Loads the model, goes on from its newest checkpoint, serves it, and trains it step by step."""

    def __init__(
        self,
        model: TrainableModel,
        directory: RunDirectory,
        *,
        vllm: VllmSettings | None,
        slots: int,
        max_context: int,
        versions: int,
        host: str,
        port: int,
    ) -> None:
        """`vllm` None: the embedded engine samples."""
        self.directory = directory
        self.step = 0
        """Training steps done."""
        self._lock = threading.Lock()
        description = model.model_dump(include={"name", "project", "base_model", "lora"})
        directory.check(description)
        self.policy = Policy(model.base_model, model.lora, model.renderer)
        self._learner = Learner(self.policy)
        self._resume()
        max_context = min(max_context, self.policy.max_context)
        with contextlib.ExitStack() as undo:
            self._engine = self._start_engine(model, vllm, slots, max_context, versions)
            undo.callback(self._engine.close)
            self._engine.publish(self.policy, self.step)
            self._prove_engine()
            self._server = EndpointServer(
                self._engine,
                self.policy.renderer,
                lambda token: self.policy.tokenizer.decode([token]),
                model=model.name,
                max_context=self._engine.max_context,
                host=host,
                port=port,
            )
            undo.pop_all()
        directory.describe(description)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self._server.base_url, "gavel")

    def train(self, groups: list[TrajectoryGroup], config: TrainConfig, extra: Mapping[str, float]) -> TrainResult:
        """One step, saved and live when this returns; steps never overlap. `extra` joins its metrics."""
        with self._lock:
            batch = make_batch(groups, config)
            metrics = trajectory_means(groups) | _account(batch) | dict(extra)
            trained = bool(batch.sequences)
            if trained:
                with self._engine.making_room():
                    metrics |= self._learner.step(batch, config)
            step = self.step + 1
            self.directory.fresh_trajectories("train", step).extend(groups)
            self._save(step, metrics)
            self._engine.publish(self.policy, step)
            if trained:
                metrics["publish_gap"] = self._prove_live(batch.sequences[0].tokens.token_ids)
            self.step = step
            self.directory.metrics.log(step, "train", metrics)
            return TrainResult(step, trained, None if trained else batch.why_empty(), metrics)

    @property
    def alive(self) -> bool:
        """Whether the engine still serves."""
        return not self._engine.closed

    def close(self) -> None:
        """Waits for the step in progress, so that its bookkeeping is whole, and stops serving."""
        with self._lock:
            self._server.close()
            self._engine.close()

    def _start_engine(
        self, model: TrainableModel, vllm: VllmSettings | None, slots: int, max_context: int, versions: int
    ) -> Engine:
        if vllm is not None:
            base, dtype, device = source_of(model.base_model), self.policy.dtype, self.policy.device.type
            rank = model.lora.rank
            served = Served(base, dtype, device, rank=rank, slots=slots, max_context=max_context, versions=versions)
            return vllm_engine(vllm, served, self.directory.path)
        own = load_base(model.base_model, self.policy.dtype, self.policy.device)
        fitting = min(slots, slots_that_fit(own, max_context))
        return TransformersEngine(own, slots=fitting, max_context=max_context, versions=versions)

    def _resume(self) -> None:
        checkpoints = self.directory.checkpoints
        latest = checkpoints.latest()
        if latest is None:
            return
        path = checkpoints.path(latest)
        self.policy.load_adapter(path)
        state = torch.load(path / _STATE, weights_only=True)
        self._learner.restore(state["learner"])
        self.step = latest
        if not any(row["step"] == latest for row in self.directory.metrics.rows("train")):
            self.directory.metrics.log(latest, "train", state["metrics"])  # killed between checkpoint and metrics

    def _save(self, step: int, metrics: dict[str, float]) -> None:
        def write(directory: Path) -> None:
            self.policy.save_adapter(directory)
            (directory / _STATE).parent.mkdir()
            torch.save({"learner": self._learner.state(), "metrics": metrics}, directory / _STATE)

        self.directory.checkpoints.save(step, write)

    def _prove_engine(self) -> None:
        """Samples a few tokens the way rollouts will, and compares with plain passes of engine and learner."""
        prompt = list(range(min(_PROOF_PROMPT, self.policy.vocabulary)))
        request = SamplingRequest(prompt, frozenset(), max_tokens=8, temperature=1.0, seed=0)
        sampled = self._engine.submit(request).result(timeout=DEADLINE)
        plain = self._engine.score([*prompt, *sampled.token_ids])[-len(sampled.token_ids) :]
        gap = max(abs(one - other) for one, other in zip(sampled.logprobs, plain, strict=True))
        if not gap <= _PROOF_TOLERANCE[self.policy.dtype]:
            raise PublishError(
                f"the engine's cache does not fit this base model: its log-probs are off by {gap:.3g} nats",
                "Choose another base model.",
            )
        self._prove_live([*prompt, *sampled.token_ids])

    def _prove_live(self, token_ids: list[int]) -> float:
        """The largest gap between sampler and learner on one sequence; `PublishError` when it is no rounding."""
        ids = token_ids[: min(_PROOF_TOKENS, self._engine.max_context - 1)]  # a score may take one token of its own
        whole = TokenSequence(ids, [False] + [True] * (len(ids) - 1), [0.0] * len(ids), [1.0] * len(ids))
        with torch.no_grad():
            learned = trained_logprobs(self.policy, [whole])
        served = torch.tensor(self._engine.score(ids), device=learned.device)
        gap = (learned - served).abs().max().item()
        if not gap <= _PROOF_TOLERANCE[self.policy.dtype]:
            raise PublishError(
                f"after publishing, sampler and learner differ by {gap:.3g} nats on a token",
                "The adapter did not become live; register the model again to go on from the last checkpoint.",
            )
        return gap


def _account(batch: Batch) -> dict[str, float]:
    counts: dict[str, float] = {
        "groups_trained": batch.groups,
        "trajectories_trained": batch.trajectories,
        "tokens_trained": batch.trained_tokens,
    }
    left_out = batch.left_out_groups + batch.left_out_members
    return counts | {f"left_out/{reason}": count for reason, count in left_out.items()}
