"""Data-parallel learning: one learner per process, driven by the leader's commands.

All processes hold the same adapter and optimizer state, compute the gradient of their share of every update, and apply
the same update from the summed gradient. In a single process, the replicas are just the leader's learner.
"""

import contextlib
import io
import itertools
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import torch

from gavel.base.errors import GavelError
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch
from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.distributed import World, WorldError
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.learner.step_bytes import fitting_tokens, measure_pass
from gavel.trainer.policy.policy import DEFAULT_SETTINGS, Policy

T = TypeVar("T")

_numbers = itertools.count()


def _open(
    world: World, base_model: str, lora: LoraSettings, renderer: str | None, settings: PolicySettings, sharded: bool
) -> Learner:
    with world.together(communicating=sharded):
        policy = Policy(base_model, lora, renderer, settings, sharded=sharded)
    return Learner(policy, world)


def _restore(learner: Learner, state: bytes) -> None:
    found = _read(state)
    learner.policy.set_adapter_weights(found["adapter"])
    learner.restore(found["learner"])


def _restart(learner: Learner, adapter: bytes) -> None:
    learner.policy.set_adapter_weights(_read(adapter))
    learner.restart()


def _refer(learner: Learner, weights: bytes | None) -> None:
    learner.reference = None if weights is None else _read(weights, learner.policy.device)


def _skip_step(learner: Learner) -> None:
    learner.steps += 1


@torch.no_grad()
def _score(learner: Learner, *batch: TokenSequence) -> torch.Tensor:
    return trained_logprobs(learner.policy, batch)


def _fit(learner: Learner, checkpointing: bool, reserved: int) -> int:
    policy, world = learner.policy, learner.world
    memory = DeviceMemory(policy.device)
    with world.together(communicating=policy.sharded):
        need = measure_pass(policy, memory, checkpointing=checkpointing)
        state = 3 * sum(parameter.nbytes for parameter in policy.parameters())  # the gradient and AdamW's means
        free = max(0, memory.free() - reserved - state)
    least_free, most = min(world.gather(free)), max(world.gather(need), key=lambda each: each.per_token)
    return fitting_tokens(most, least_free, policy.device_kind)


def _written(value: object) -> bytes:
    state = io.BytesIO()
    torch.save(value, state)
    return state.getvalue()


def _read(state: bytes, device: torch.device | str = "cpu") -> Any:
    return torch.load(io.BytesIO(state), weights_only=True, map_location=device)


class LearnerReplicas:
    """The learners of all processes, as the leader uses them. A command is a function of a learner."""

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
        opening = (base_model, lora, renderer, settings, sharded)
        with world.leading:
            world.broadcast((self._number, _open, opening))
            self.learner = _open(world, *opening)

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    def synchronize(self) -> None:
        """Copies the leader's adapter, optimizer state and step count to all processes."""
        if self._world.size > 1:
            with self._world.leading:
                self._world.broadcast((self._number, _restore, (self._state(),)))

    @contextlib.contextmanager
    def restarted(self, adapter: Sequence[torch.Tensor]) -> Generator[None]:
        """Gives all learners this adapter and a new optimizer; what the block raises puts them back as they were."""
        before = self._state()
        self._run(_restart, _written([*adapter]))
        try:
            yield
        except Exception:
            self._run(_restore, before)
            raise

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """`Learner.step` by all processes; the metrics are those of the whole batch."""
        return self._run(Learner.step, batch, config)

    def refer_to(self, weights: Sequence[torch.Tensor] | None) -> None:
        """Sets what divergences are from, in every process: the adapter's weights, or None, the base model."""
        self._run(_refer, None if weights is None else _written([*weights]))

    def skip_step(self) -> None:
        """Counts a step with nothing to learn from: the learning-rate schedule goes on."""
        self._run(_skip_step)

    def logprobs(self, *batch: TokenSequence) -> torch.Tensor:
        """`trained_logprobs` of some sequences, without a gradient. `[T]`"""
        return self._run(_score, *batch)

    def fitting_tokens(self, *, checkpointing: bool, reserved: int) -> int:
        """Tokens of the largest micro-batch for the process with the least free memory, by passes measured now.

        `reserved`: bytes that others will take of it.
        """
        return self._run(_fit, checkpointing, reserved)

    def close(self) -> None:
        """Frees the learners of the other processes, unless these are gone."""
        with self._world.leading, contextlib.suppress(WorldError):
            self._world.broadcast((self._number, None, ()))

    def _run(self, command: Callable[..., T], *given: Any) -> T:
        """Runs in every process; returns the leader's result."""
        with self._world.leading:
            self._world.broadcast((self._number, command, given))
            return command(self.learner, *given)

    def _state(self) -> bytes:
        adapter = [parameter.detach() for parameter in self.policy.parameters()]
        return _written({"adapter": adapter, "learner": self.learner.state()})


def follow_leader(world: World) -> None:
    """Executes the leader's commands until it ends: the main loop of every other process. Raises `WorldError`.

    Ctrl-C is ignored here, so that the leader can finish its step.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    learners: dict[int, Learner] = {}
    while (received := world.receive()) is not None:
        number, command, given = received
        try:
            if command is None:
                learners.pop(number, None)
            elif command is _open:
                learners[number] = _open(world, *given)
            else:
                command(learners[number], *given)
        except GavelError:
            if world.lost:
                raise
            continue  # the leader raises it too, and reports it
