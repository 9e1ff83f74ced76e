"""One model in training: its policy, learner, engine and endpoint, over its run directory.

The checkpoint completes a step. Before it counts, the step's trajectories are on disk and its adapter is proven to be
live: an adapter that the sampler cannot follow is no checkpoint. A process that is killed at any point resumes from a
whole checkpoint.

`MemorySettings` chooses what bounds a run's memory once and keeps it in memory.json, so that a resumed run cuts its
batches as before, on whatever device; what a call sets itself wins.
"""

import contextlib
import json
import logging
import pickle
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from pydantic import BaseModel, PositiveInt, ValidationError
from safetensors import SafetensorError

from gavel.base.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.proof import PublishError, SamplerProof
from gavel.trainer.backends.protocol import Endpoint, TrainResult
from gavel.trainer.backends.run_start import RunStart
from gavel.trainer.config import SftConfig, TrainConfig, VllmSettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch, ServedTokens, TokenSpace, make_batch
from gavel.trainer.distributed import World, WorldError
from gavel.trainer.engines.grammar import Grammars
from gavel.trainer.engines.kv_cache import COMMON_CONTEXT, context_that_fits, slots_that_fit
from gavel.trainer.engines.protocol import Engine, EngineError
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.engines.vllm_launch import Served, open_vllm_engine
from gavel.trainer.learner.replicas import LearnerReplicas
from gavel.trainer.learner.step_bytes import LEAST_TOKENS, checkpoints_by_default
from gavel.trainer.model_spec import TrainableSpec, describe_model
from gavel.trainer.policy.adapters import keep_reference, reference_weights
from gavel.trainer.policy.loading import BaseModelError, check_sampled_here, usable_context
from gavel.trainer.policy.policy import load_config, source_of
from gavel.trainer.runs.checkpoints import CARD
from gavel.trainer.runs.metrics import judge_totals, trajectory_means
from gavel.trainer.runs.model_card import model_card
from gavel.trainer.runs.run_directory import (
    EXPERIMENT,
    FORMAT_VERSION,
    TRAINER_STATE,
    RunDirectory,
    RunDirectoryError,
    check_format_version,
)
from gavel.trainer.serving.openai_server import EndpointServer
from gavel.trainer.sft.sft_batch import METRICS, as_training, make_sft_batch

FILE = "memory.json"
_DELETE = "Restore the file, or delete it: the run then measures what fits again."


class _Kept(BaseModel, strict=True, extra="ignore"):
    """The contents of memory.json."""

    gradient_checkpointing: bool | None
    micro_batch_tokens: dict[Literal["with_checkpointing", "without_checkpointing"], PositiveInt] = {}


class MemorySettings:
    """Fills in what a `TrainConfig` leaves open."""

    def __init__(self, directory: RunDirectory, device: str, fit: Callable[[bool], int]) -> None:
        """`fit` measures the tokens, given whether activations are checkpointed.

        Raises `RunDirectoryError` for a file that holds something else.
        """
        self._directory = directory
        self._fit = fit
        try:
            self._is_new = not (described := directory.description(FILE))
            check_format_version(described.get("format_version"), FILE)
            self._kept = _Kept.model_validate(described or {"gradient_checkpointing": checkpoints_by_default(device)})
        except (RunDirectoryError, ValidationError) as error:
            raise RunDirectoryError(
                f"{directory.path / FILE} does not hold the memory settings of a run: {error}", _DELETE
            ) from error

    def fill_in(self, config: TrainConfig) -> TrainConfig:
        """The config with all of them; measures when the run does not know a number of tokens yet."""
        if self._is_new:
            self._save()  # also when this call sets both: a later one may not, after a restart
        on, tokens, whole = config.gradient_checkpointing, config.micro_batch_tokens, config.whole_pass_tokens
        if on is None:
            on = self._kept.gradient_checkpointing
        if tokens is None:
            tokens = self._tokens(on is not False)
        if on is None and whole is None:
            fitting = self._tokens(False)
            whole = fitting if fitting > LEAST_TOKENS else 0  # that many may not fit either
        found = {"gradient_checkpointing": on, "micro_batch_tokens": tokens, "whole_pass_tokens": whole}
        return config.model_copy(update=found)

    def _tokens(self, checkpointing: bool) -> int:
        """Tokens of a micro-batch, as they were measured first."""
        mode = "with_checkpointing" if checkpointing else "without_checkpointing"
        if mode not in self._kept.micro_batch_tokens:
            self._kept.micro_batch_tokens[mode] = self._fit(checkpointing)
            self._save()
        return self._kept.micro_batch_tokens[mode]

    def _save(self) -> None:
        self._directory.describe(self._kept.model_dump(), FILE)
        self._is_new = False


logger = logging.getLogger(__name__)
_MANY = 0.01
"""Share of a step's tokens."""
_STATE = Path(TRAINER_STATE) / "state.pt"


class SaveError(GavelError):
    """A step was trained, but could not be saved."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Sampling and serving settings shared by the runs of a backend; `LocalBackend` documents each."""

    vllm: VllmSettings | None
    """None: the embedded engine samples."""
    slots: int
    max_context: int | None
    max_reply: int | None
    versions: int
    host: str
    port: int
    shard_base: bool


class TrainingRun:
    """Loads a model, resumes from its newest checkpoint, serves it, and trains it step by step."""

    def __init__(self, model: TrainableSpec, directory: RunDirectory, world: World, serving: Serving) -> None:
        if serving.shard_base and serving.vllm is None:
            raise WorldError("the embedded engine holds the whole base on one device", "Sample with --engine vllm.")
        self.directory = directory
        self.step = 0
        """Training steps done."""
        self._lock = threading.Lock()
        self._reference = "base"
        """The reference policy of the KL divergence, as `TrainConfig.reference` names it."""
        self._description = description = describe_model(model)
        directory.check(description)
        self._start = RunStart(model, directory)
        if self._start.record is not None:
            description["from_checkpoint"] = self._start.record
        if model.policy.loader == "unsloth" and serving.vllm is None:
            raise BaseModelError(
                "Unsloth exchanges the layers of transformers in the whole process, so the embedded engine cannot run",
                "Sample with LocalBackend(engine='vllm'), or leave loader out of PolicySettings.",
            )
        config = load_config(model.base_model)
        longest = usable_context(config)
        if serving.vllm is None:
            check_sampled_here(config)
        self._told_of_outliers = False
        self._replicas = LearnerReplicas(
            world, model.base_model, model.lora, model.renderer, model.policy, sharded=serving.shard_base
        )
        self.policy = self._replicas.policy
        self._new_adapter = self.policy.adapter_weights()
        with contextlib.ExitStack() as undo:
            undo.callback(self._replicas.close)
            self._resume()
            self._replicas.synchronize()
            self._memory = MemorySettings(directory, self.policy.device_kind, self._fit)
            self._engine = self._start_engine(model, serving, longest)
            undo.callback(self._engine.close)
            self._engine.publish(self.policy, self.step)
            adapted = self.step > 0 or self._start.record is not None
            self._proof = SamplerProof(
                self._engine, self.policy, self._replicas.logprobs, self._base_logprobs, adapted=adapted
            )
            self._server = EndpointServer(
                self._engine,
                self.policy,
                model=model.name,
                max_reply=serving.max_reply,
                host=serving.host,
                port=serving.port,
                base_model=model.base_model,
            )
            undo.callback(self._server.close)
            with saving(self.step):
                self._start.keep(lambda directory: self._write_policy(directory, self._card(0)))
            self._closing = undo.pop_all()
        directory.describe(description)
        self._limits = _limits(self._engine.max_context, longest, serving.max_reply)
        logger.info("%s: %s", model.name, self._limits)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self._server.base_url, "gavel", self._limits)

    @property
    def token_space(self) -> TokenSpace:
        return ServedTokens(self.policy.vocabulary, self._engine.max_context, self.policy.decode)

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """The learner's, of the trained tokens of each sequence."""
        with self._lock:
            flat = self._replicas.logprobs(*sequences) if sequences else torch.zeros(0)
        parts = torch.split(flat, [sequence.trained_tokens for sequence in sequences])
        return [[value.item() for value in part] for part in parts]

    def prepare(self, config: TrainConfig) -> None:
        """Sets what divergences are from. Raises `BaseModelError`."""
        with self._lock:
            self._refer(config)

    def train(self, groups: list[TrajectoryGroup], config: TrainConfig, extra: Mapping[str, float]) -> TrainResult:
        """One step; its adapter is saved and live when this returns. Steps never overlap. `extra` joins its metrics."""
        with self._lock:
            self._refer(config)
            batch = make_batch(groups, config, self.policy)
            learnt = judge_totals(groups) | {"groups_trained": batch.groups} | batch.critic
            learnt |= self._learn(batch, config)
            if batch.sequences:
                learnt["tokens_outlying"] = round(learnt["logprob_outliers"] * batch.trained_tokens)
                self._warn_of_outliers(learnt["logprob_outliers"], config)
            return self._complete("train", groups, batch, learnt | dict(extra))

    def train_sft(self, trajectories: list[Trajectory], config: SftConfig) -> TrainResult:
        """One supervised step on the assistant turns of the trajectories."""
        with self._lock:
            batch = make_sft_batch(trajectories, self.policy)
            learnt = self._learn(batch, as_training(config, batch), restart=config.restart)
            groups = [TrajectoryGroup([trajectory]) for trajectory in trajectories]
            return self._complete("sft", groups, batch, {name: learnt[name] for name in METRICS if name in learnt})

    def update_card(self) -> None:
        """Writes the newest checkpoint's model card again, with what was measured since."""
        with saving(self.step):
            self.directory.checkpoints.write_card(self.step, self._card(self.step))

    @property
    def alive(self) -> bool:
        """Whether the engine still serves."""
        return not self._engine.closed

    def close(self) -> None:
        """Waits for the step in progress to be saved and logged, and stops serving."""
        with self._lock:
            self._closing.close()

    def _learn(self, batch: Batch, config: TrainConfig, *, restart: bool = False) -> dict[str, float]:
        """The learner's metrics of the step; empty for a batch without sequences, which counts as a step too."""
        if batch.sequences:
            self._proof.before(batch.sequences)  # while the learner has the adapter that is live
        with self._replicas.restarted(self._first_adapter()) if restart else contextlib.nullcontext():
            if not batch.sequences:
                self._replicas.skip_step()
                return {}
            with self._engine.release_memory():
                return self._replicas.step(batch, self._memory.fill_in(config))

    def _first_adapter(self) -> list[torch.Tensor]:
        """The adapter of step 0. Raises `RunDirectoryError` when the copy of another run's is damaged."""
        if self._start.record is None:
            return self._new_adapter
        now = self.policy.adapter_weights()
        self._start.load(self.policy)
        first = self.policy.adapter_weights()
        self.policy.set_adapter_weights(now)
        return first

    def _fit(self, checkpointing: bool) -> int:
        return self._replicas.fitting_tokens(checkpointing=checkpointing, reserved=self._engine.cache_growth())

    def _base_logprobs(self, *batch: TokenSequence) -> torch.Tensor:
        with self.policy.model.disable_adapter():
            return self._replicas.logprobs(*batch)

    def _refer(self, config: TrainConfig) -> None:
        asked = config.reference if config.beta or config.kl_in_reward else "base"
        if asked == self._reference:
            return
        weights = None
        if asked != "base":
            with saving(self.step):
                kept = keep_reference(self.directory.path, self.directory.checkpoints.path, self.policy, config)
            weights = reference_weights(self.policy, kept)
        self._replicas.refer_to(weights)
        self._reference = asked

    def _warn_of_outliers(self, share: float, config: TrainConfig) -> None:
        """Once a run."""
        if share >= _MANY and config.sampler_correction is None and not self._told_of_outliers:
            self._told_of_outliers = True
            logger.warning(
                "Sampler and learner differ by more than 0.5 nats on %.1f %% of the tokens: a mixture chose other "
                "experts, or the policy went on since. Their ratios are off; sampler_correction with mode 'token_mask' "
                "leaves them out (docs/algorithms.md).",
                100 * share,
            )

    def _complete(
        self, split: str, groups: list[TrajectoryGroup], batch: Batch, learnt: dict[str, float]
    ) -> TrainResult:
        """Stores the step's trajectories, publishes the adapter, proves that it is live, and saves a checkpoint."""
        metrics = trajectory_means(groups) | _batch_counts(batch) | learnt
        trained = bool(batch.sequences)
        step = self.step + 1
        checkpoints = self.directory.checkpoints
        self.directory.check_held()
        with saving(step):
            self.directory.fresh_trajectories(split, step).extend(groups)
            checkpoints.prepare(step, lambda directory: self._write(directory, step, split, metrics))
        try:
            self._engine.publish(self.policy, step)
            if trained:
                metrics |= self._proof.after()
            metrics |= self._proof.admit_returned()
        except PublishError:
            checkpoints.discard(step)
            raise
        except EngineError:  # which says nothing of the adapter
            with saving(step):
                checkpoints.complete(step)
            raise
        with saving(step):
            checkpoints.complete(step)
        self.step = step
        self.directory.metrics.log(step, split, metrics)
        self.directory.metrics.log_groups(step, split, groups)
        return TrainResult(step, trained, None if trained else batch.why_empty(), metrics)

    def _start_engine(self, model: TrainableSpec, serving: Serving, longest: int) -> Engine:
        """`longest`: the model's own context, in tokens."""
        vllm, slots, versions = serving.vllm, serving.slots, serving.versions
        max_context = None if serving.max_context is None else min(serving.max_context, longest)
        grammars = Grammars(self.policy.tokenizer, self.policy.vocabulary)
        if vllm is not None:
            base, dtype, device = source_of(model.base_model), self.policy.dtype, self.policy.device.type
            quantized = model.policy.quantization is not None
            context = max_context or (longest if device == "cuda" or vllm.urls else min(longest, COMMON_CONTEXT))
            rank, less = model.lora.rank, max_context is None
            experts = model.lora.experts
            served = Served(base, dtype, device, rank, slots, context, versions, quantized, experts, may_be_less=less)
            return open_vllm_engine(vllm, served, self.directory.path, grammars)
        own = self.policy.plain_model()
        max_context = max_context or context_that_fits(own, longest, slots)
        fitting = min(slots, slots_that_fit(own, max_context))
        return TransformersEngine(own, slots=fitting, max_context=max_context, versions=versions, grammars=grammars)

    def _resume(self) -> None:
        checkpoints, metrics = self.directory.checkpoints, self.directory.metrics
        latest, state = self._load_newest_state()
        if latest is None:
            if checkpoints.steps() or any(row["step"] for row in metrics.rows()):
                raise RunDirectoryError(
                    f"the run in {self.directory.path} was trained, but none of its checkpoints is whole",
                    "Restore one of them, or give the new run another name.",
                )
            self._start.load(self.policy)
            return
        path = checkpoints.path(latest)
        check_format_version(state.get("format_version"), str(path / _STATE))
        metrics.drop_after(latest)
        self.policy.load_adapter(path)
        self._replicas.learner.restore(state["learner"])
        self.step = latest
        split = state.get("split", "train")
        if not any(row["step"] == latest for row in metrics.rows(split)):
            metrics.log(latest, split, state["metrics"])  # killed between checkpoint and metrics

    def _load_newest_state(self) -> tuple[int | None, dict[str, Any]]:
        """The newest step whose state can be read, and its state. Only tensors and plain values are ever unpickled."""
        checkpoints = self.directory.checkpoints
        latest = checkpoints.latest()
        while latest is not None:
            path = checkpoints.path(latest) / _STATE
            try:
                state = torch.load(path, weights_only=True)
                if isinstance(state, dict) and {"learner", "metrics"} <= state.keys():
                    return latest, cast("dict[str, Any]", state)
                problem = "it holds something else"
            except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
                problem = type(error).__name__
            logger.warning("%s is no state of a run (%s); going back to the checkpoint before", path, problem)
            latest = checkpoints.latest(before=latest)
        return None, {}

    def _write_policy(self, directory: Path, card: str) -> None:
        self.policy.save_adapter(directory)
        self.policy.tokenizer.save_pretrained(str(directory))
        (directory / CARD).write_text(card, encoding="utf-8")

    def _write(self, directory: Path, step: int, split: str, metrics: dict[str, float]) -> None:
        self._write_policy(directory, self._card(step, {"step": step, "split": split, **metrics}))
        (directory / _STATE).parent.mkdir()
        if experiment := self.directory.description(EXPERIMENT):
            (directory / TRAINER_STATE / EXPERIMENT).write_text(json.dumps(experiment))
        state = {"learner": self._replicas.learner.state(), "split": split, "metrics": metrics}
        torch.save({"format_version": FORMAT_VERSION, **state}, directory / _STATE)

    def _card(self, step: int, *newest: dict[str, Any]) -> str:
        """The model card of a step, whose own row of metrics may not be written yet."""
        rows = [*self.directory.metrics.rows(), *newest]
        experiment = self.directory.description(EXPERIMENT)
        return model_card(
            self._description, experiment, rows, step=step, base=source_of(self._description["base_model"])
        )


def _limits(context: int, longest: int, max_reply: int | None) -> str:
    whose = "the model's own" if context == longest else f"of the model's {longest:,}"
    replies = "the rest of it" if max_reply is None else f"{max_reply:,} tokens"
    return f"context {context:,} tokens ({whose}); a reply without max_tokens may take {replies}"


@contextlib.contextmanager
def saving(step: int) -> Generator[None]:
    """Raises `SaveError` for what writing to a disk may raise."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # which of them a full disk is depends on who writes
        told = error if isinstance(error, OSError) else f"most often because the disk is full ({error})"
        raise SaveError(
            f"step {step} could not be saved: {told}",
            "Make room, and register the model again (or give the command again): it goes on from the last checkpoint.",
        ) from error


def _batch_counts(batch: Batch) -> dict[str, float]:
    counts: dict[str, float] = {
        "trajectories_trained": batch.trajectories,
        "tokens_trained": batch.trained_tokens,
        "tokens_unique": batch.unique_tokens,
    }
    left_out = batch.left_out_groups + batch.left_out_members
    counts |= {f"token_mismatch/{kind}": count for kind, count in batch.token_mismatches.items()}
    return counts | {reason.metric: count for reason, count in left_out.items()}
