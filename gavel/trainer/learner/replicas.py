"""Data-parallel learning: one learner per process, driven by the leader's commands.

All processes hold the same adapter and optimizer state, compute the gradient of their share of every update, and apply
the same update from the summed gradient. In a single process, the replicas are just the leader's learner.
"""

import contextlib
import io
import itertools
import signal
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from gavel.base.errors import GavelError
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch
from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.distributed import World, WorldError
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.learner.step_bytes import FittedPass, fitting_tokens, measure_pass
from gavel.trainer.policy.policy import DEFAULT_SETTINGS, Policy

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Open:
    base_model: str
    lora: LoraSettings
    renderer: str | None
    settings: PolicySettings
    sharded: bool

    def learner(self, world: World) -> Learner:
        with world.together(communicating=self.sharded):
            policy = Policy(self.base_model, self.lora, self.renderer, self.settings, sharded=self.sharded)
        return Learner(policy, world)


@dataclass(frozen=True, slots=True)
class _Restore:
    state: bytes

    def apply(self, learner: Learner) -> None:
        state = torch.load(io.BytesIO(self.state), weights_only=True, map_location="cpu")
        learner.policy.set_adapter_weights(state["adapter"])
        learner.restore(state["learner"])


@dataclass(frozen=True, slots=True)
class _Restart:
    adapter: bytes

    def apply(self, learner: Learner) -> None:
        learner.policy.set_adapter_weights(torch.load(io.BytesIO(self.adapter), weights_only=True, map_location="cpu"))
        learner.restart()


@dataclass(frozen=True, slots=True)
class _Step:
    batch: Batch
    config: TrainConfig

    def apply(self, learner: Learner) -> dict[str, float]:
        return learner.step(self.batch, self.config)


@dataclass(frozen=True, slots=True)
class _Refer:
    """Sets the reference of a divergence."""

    weights: bytes | None

    def apply(self, learner: Learner) -> None:
        learner.reference = None
        if self.weights is not None:
            read = torch.load(io.BytesIO(self.weights), weights_only=True, map_location=learner.policy.device)
            learner.reference = read


@dataclass(frozen=True, slots=True)
class _SkipStep:
    def apply(self, learner: Learner) -> None:
        learner.steps += 1


@dataclass(frozen=True, slots=True)
class _Score:
    batch: tuple[TokenSequence, ...]

    @torch.no_grad()
    def apply(self, learner: Learner) -> torch.Tensor:
        return trained_logprobs(learner.policy, self.batch)


@dataclass(frozen=True, slots=True)
class _Fit:
    checkpointing: bool
    reserved: int

    def apply(self, learner: Learner, memory: DeviceMemory | None = None) -> FittedPass:
        policy, world = learner.policy, learner.world
        memory = memory or DeviceMemory(policy.device)
        with world.together(communicating=policy.sharded):
            need = measure_pass(policy, memory, checkpointing=self.checkpointing)
            state = 3 * sum(parameter.nbytes for parameter in policy.parameters())  # the gradient and AdamW's means
            free = max(0, memory.free() - self.reserved - state)
        least_free, most = min(world.gather(free)), max(world.gather(need), key=lambda each: each.per_token)
        return FittedPass(fitting_tokens(most, least_free, policy.device_kind), least_free, most)


@dataclass(frozen=True, slots=True)
class _Close:
    pass


class LearnerReplicas:
    """The learners of all processes, as the leader uses them."""

    def __init__(
        self,
        world: World,
        base_model: str,
        lora: LoraSettings,
        renderer: str | None = None,
        settings: PolicySettings = DEFAULT_SETTINGS,
        *,
        sharded: bool = False,
    ) -> None:
        """Loads the policy in every process; `sharded` shards its base over them. Raises `BaseModelError`."""
        if sharded and world.size == 1:
            raise WorldError("a single process cannot shard the base", "Start several: --nproc 2, or torchrun.")
        self._world = world
        self._number = next(_numbers)
        opening = _Open(base_model, lora, renderer, settings, sharded)
        with world.leading:
            self._broadcast(opening)
            self.learner = opening.learner(world)

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    def synchronize(self) -> None:
        """Copies the leader's adapter, optimizer state and step count to all processes."""
        if self._world.size == 1:
            return
        with self._world.leading:
            self._broadcast(_Restore(self._state()))

    @contextlib.contextmanager
    def restarted(self, adapter: Sequence[torch.Tensor]) -> Generator[None]:
        """Gives all learners this adapter and a new optimizer; what the block raises puts them back as they were."""
        before, weights = self._state(), io.BytesIO()
        torch.save([*adapter], weights)
        self._apply(_Restart(weights.getvalue()))
        try:
            yield
        except Exception:
            self._apply(_Restore(before))
            raise

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """`Learner.step` by all processes; the metrics are those of the whole batch."""
        step = _Step(batch, config)
        with self._world.leading:
            self._broadcast(step)
            return step.apply(self.learner)

    def refer_to(self, weights: Sequence[torch.Tensor] | None) -> None:
        """Sets what divergences are from, in every process: the adapter's weights, or None, the base model."""
        state = io.BytesIO()
        if weights is not None:
            torch.save([*weights], state)
        command = _Refer(None if weights is None else state.getvalue())
        with self._world.leading:
            self._broadcast(command)
            command.apply(self.learner)

    def skip_step(self) -> None:
        """Counts a step with nothing to learn from: the learning-rate schedule goes on."""
        with self._world.leading:
            self._broadcast(_SkipStep())
            _SkipStep().apply(self.learner)

    def logprobs(self, *batch: TokenSequence) -> torch.Tensor:
        """`trained_logprobs` of some sequences, without a gradient. `[T]`"""
        score = _Score(batch)
        with self._world.leading:
            self._broadcast(score)
            return score.apply(self.learner)

    def fitting_pass(self, *, checkpointing: bool, reserved: int, memory: DeviceMemory | None = None) -> FittedPass:
        """The largest micro-batch for the process with the least free memory, by passes that are measured now.

        `reserved`: bytes that others will take of it. `memory`: the leader's, by default that of its device.
        """
        fit = _Fit(checkpointing, reserved)
        with self._world.leading:
            self._broadcast(fit)
            return fit.apply(self.learner, memory)

    def close(self) -> None:
        """Frees the learners of the other processes, unless these are gone."""
        with self._world.leading, contextlib.suppress(WorldError):
            self._broadcast(_Close())

    def _state(self) -> bytes:
        state = io.BytesIO()
        adapter = [parameter.detach() for parameter in self.policy.parameters()]
        torch.save({"adapter": adapter, "learner": self.learner.state()}, state)
        return state.getvalue()

    def _apply(self, command: _Restart | _Restore) -> None:
        with self._world.leading:
            self._broadcast(command)
            command.apply(self.learner)

    def _broadcast(self, command: object) -> None:
        self._world.broadcast((self._number, command))


def follow_leader(world: World) -> None:
    """Executes the leader's commands until it ends: the main loop of every other process. Raises `WorldError`.

    Ctrl-C is ignored here, so that the leader can finish its step.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    learners: dict[int, Learner] = {}
    while (received := world.receive()) is not None:
        number, command = received
        try:
            match command:
                case _Open():
                    learners[number] = command.learner(world)
                case _Close():
                    learners.pop(number, None)
                case _:
                    command.apply(learners[number])
        except GavelError:
            if world.lost:
                raise
            continue  # the leader raises it too, and reports it
