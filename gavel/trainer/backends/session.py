"""One model in training: its policy, learner, engine and endpoint, over its run directory.

The checkpoint is what makes a step done: its trajectories are on disk before it, its adapter is published
after it. Whatever happens, the next start goes on from a checkpoint that is whole.
"""

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError

from gavel.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import Endpoint, TrainResult
from gavel.trainer.config import SftConfig, TrainConfig, VllmSettings
from gavel.trainer.data.batch import Batch, make_batch
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.distributed import World, WorldError
from gavel.trainer.engines.kv_cache import slots_that_fit
from gavel.trainer.engines.protocol import DEADLINE, Engine, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.engines.vllm_server import Served, vllm_engine
from gavel.trainer.learner.replicas import LearnerReplicas
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import load_base, source_of
from gavel.trainer.runs.metrics import judge_totals, trajectory_means
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError
from gavel.trainer.serving.openai_server import EndpointServer
from gavel.trainer.sft.batch import METRICS, as_training, make_sft_batch

_STATE = Path("trainer_state") / "state.pt"
_PROOF_TOKENS = 256
_PROOF_PROMPT = 24
_PROOF_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Nats by which one token's log-prob may differ between sampler and learner, by rounding alone."""


class PublishError(GavelError):
    """The sampler does not follow the adapter that was published."""


class SaveError(GavelError):
    """A step was learnt, but could not be written down."""


class TrainingRun:
    """Loads the model, goes on from its newest checkpoint, serves it, and trains it step by step."""

    def __init__(
        self,
        model: TrainableModel,
        directory: RunDirectory,
        world: World,
        *,
        vllm: VllmSettings | None,
        slots: int,
        max_context: int,
        versions: int,
        host: str,
        port: int,
        shard_base: bool,
    ) -> None:
        """`vllm` None: the embedded engine samples."""
        if shard_base and vllm is None:
            raise WorldError("the embedded engine holds the whole base on one device", "Sample with --engine vllm.")
        self.directory = directory
        self.step = 0
        """Training steps done."""
        self._lock = threading.Lock()
        description = model.model_dump(include={"name", "project", "base_model", "lora", "policy"})
        directory.check(description)
        if model.policy.loader == "unsloth" and vllm is None:
            raise BaseModelError(
                "Unsloth exchanges the layers of transformers in the whole process, so the embedded engine cannot run",
                "Sample with LocalBackend(engine='vllm'), or leave loader out of PolicySettings.",
            )
        self._team = LearnerReplicas(
            world, model.base_model, model.lora, model.renderer, model.policy, sharded=shard_base
        )
        self.policy = self._team.policy
        with contextlib.ExitStack() as undo:
            undo.callback(self._team.close)
            self._resume()
            self._team.synchronize()
            max_context = min(max_context, self.policy.max_context)
            self._engine = self._start_engine(model, vllm, slots, max_context, versions)
            undo.callback(self._engine.close)
            self._engine.publish(self.policy, self.step)
            self._prove_engine()
            self._server = EndpointServer(
                self._engine,
                self.policy.renderer,
                self.policy.decode,
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
            batch = make_batch(groups, config, self.policy)
            learnt = judge_totals(groups) | {"groups_trained": batch.groups} | self._learn(batch, config)
            return self._finish("train", groups, batch, learnt | dict(extra))

    def train_sft(self, trajectories: list[Trajectory], config: SftConfig) -> TrainResult:
        """The same for what the trajectories say, as a step of its own."""
        with self._lock:
            batch = make_sft_batch(trajectories, self.policy)
            learnt = self._learn(batch, as_training(config, batch))
            groups = [TrajectoryGroup([trajectory]) for trajectory in trajectories]
            return self._finish("sft", groups, batch, {name: learnt[name] for name in METRICS if name in learnt})

    @property
    def alive(self) -> bool:
        """Whether the engine still serves."""
        return not self._engine.closed

    def close(self) -> None:
        """Waits for the step in progress, so that its bookkeeping is whole, and stops serving."""
        with self._lock:
            self._server.close()
            self._engine.close()
            self._team.close()

    def _learn(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """The learner's metrics of the step; none for a batch that trains nothing."""
        if not batch.sequences:
            return {}
        with self._engine.release_memory():
            return self._team.step(batch, config)

    def _finish(self, split: str, groups: list[TrajectoryGroup], batch: Batch, learnt: dict[str, float]) -> TrainResult:
        """Stores what the step was made from, saves the adapter, makes it live, and proves that it is."""
        metrics = trajectory_means(groups) | _account(batch) | learnt
        trained = bool(batch.sequences)
        step = self.step + 1
        try:
            self.directory.fresh_trajectories(split, step).extend(groups)
            self._save(step, split, metrics)
        except (OSError, RuntimeError, SafetensorError) as error:  # which of them a full disk is depends on who writes
            raise SaveError(
                f"step {step} could not be saved: {error}",
                "Make room, and register the model again: it goes on from the last checkpoint.",
            ) from error
        self._engine.publish(self.policy, step)
        if trained:
            metrics["publish_gap"] = self._prove_live(batch.sequences[0].tokens.token_ids)
        self.step = step
        self.directory.metrics.log(step, split, metrics)
        return TrainResult(step, trained, None if trained else batch.why_empty(), metrics)

    def _start_engine(
        self, model: TrainableModel, vllm: VllmSettings | None, slots: int, max_context: int, versions: int
    ) -> Engine:
        if vllm is not None:
            base, dtype, device = source_of(model.base_model), self.policy.dtype, self.policy.device.type
            quantized = model.policy.quantization is not None
            served = Served(base, dtype, device, model.lora.rank, slots, max_context, versions, quantized)
            return vllm_engine(vllm, served, self.directory.path)
        own = load_base(model.base_model, self.policy.dtype, self.policy.device, model.policy.quantization)
        fitting = min(slots, slots_that_fit(own, max_context))
        return TransformersEngine(own, slots=fitting, max_context=max_context, versions=versions)

    def _resume(self) -> None:
        checkpoints, metrics = self.directory.checkpoints, self.directory.metrics
        latest = checkpoints.latest()
        if latest is None:
            if checkpoints.steps() or any(row["step"] for row in metrics.rows()):
                raise RunDirectoryError(
                    f"the run in {self.directory.path} was trained, but none of its checkpoints is whole",
                    "Restore one of them, or give the new run another name.",
                )
            return
        metrics.forget_after(latest)
        path = checkpoints.path(latest)
        self.policy.load_adapter(path)
        state = torch.load(path / _STATE, weights_only=True)
        self._team.learner.restore(state["learner"])
        self.step = latest
        split = state.get("split", "train")
        if not any(row["step"] == latest for row in metrics.rows(split)):
            metrics.log(latest, split, state["metrics"])  # killed between checkpoint and metrics

    def _save(self, step: int, split: str, metrics: dict[str, float]) -> None:
        def write(directory: Path) -> None:
            self.policy.save_adapter(directory)
            (directory / _STATE).parent.mkdir()
            state = {"learner": self._team.learner.state(), "split": split, "metrics": metrics}
            torch.save(state, directory / _STATE)

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
        learned = self._team.logprobs(whole)
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
        "trajectories_trained": batch.trajectories,
        "tokens_trained": batch.trained_tokens,
        "tokens_unique": batch.unique_tokens,
    }
    left_out = batch.left_out_groups + batch.left_out_members
    counts |= {f"token_mismatch/{kind}": count for kind, count in batch.token_mismatches.items()}
    return counts | {f"left_out/{reason}": count for reason, count in left_out.items()}
