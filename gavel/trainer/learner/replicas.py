"""One learner in several processes: the leader's own, and copies of it that follow.

All hold the same adapter and optimiser state, learn their share of every update, and make the same update from the
summed gradient. Alone, a team is its leader.
"""

import contextlib
import io
import itertools
import signal
import threading
from dataclasses import dataclass

import torch

from gavel.errors import GavelError
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.batch import Batch
from gavel.trainer.data.tokens import TokenSequence
from gavel.trainer.distributed import World, WorldError
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import AS_IT_FITS, Policy

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Open:
    base_model: str
    lora: LoraSettings
    renderer: str | None
    settings: PolicySettings
    sharded: bool

    def learner(self, world: World) -> Learner:
        with world.together(talking=self.sharded):
            policy = Policy(self.base_model, self.lora, self.renderer, self.settings, sharded=self.sharded)
        return Learner(policy, world)


@dataclass(frozen=True, slots=True)
class _Restore:
    state: bytes

    def apply(self, learner: Learner) -> None:
        state = torch.load(io.BytesIO(self.state), weights_only=True, map_location="cpu")
        with torch.no_grad():
            for parameter, value in zip(learner.policy.parameters(), state["adapter"], strict=True):
                parameter.copy_(value)
        learner.restore(state["learner"])


@dataclass(frozen=True, slots=True)
class _Step:
    batch: Batch
    config: TrainConfig

    def apply(self, learner: Learner) -> dict[str, float]:
        return learner.step(self.batch, self.config)


@dataclass(frozen=True, slots=True)
class _Score:
    tokens: TokenSequence

    @torch.no_grad()
    def apply(self, learner: Learner) -> torch.Tensor:
        return trained_logprobs(learner.policy, [self.tokens])


@dataclass(frozen=True, slots=True)
class _Close:
    pass


class Team:
    """A learner as the leading process holds it."""

    def __init__(
        self,
        world: World,
        base_model: str,
        lora: LoraSettings,
        renderer: str | None = None,
        settings: PolicySettings = AS_IT_FITS,
        *,
        sharded: bool = False,
    ) -> None:
        """Loads the policy in every process; `sharded` spreads its base over them. Raises `BaseModelError`."""
        if sharded and world.size == 1:
            raise WorldError("one process has nobody to share the base with", "Start several: --nproc 2, or torchrun.")
        self._world = world
        self._number = next(_numbers)
        opening = _Open(base_model, lora, renderer, settings, sharded)
        with world.leading:
            self._tell(opening)
            self.learner = opening.learner(world)

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    def align(self) -> None:
        """Gives all processes the leader's adapter, optimiser state and count of steps."""
        if self._world.size == 1:
            return
        state = io.BytesIO()
        adapter = [parameter.detach() for parameter in self.policy.parameters()]
        torch.save({"adapter": adapter, "learner": self.learner.state()}, state)
        with self._world.leading:
            self._tell(_Restore(state.getvalue()))

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """`Learner.step` by all processes; the metrics are those of the whole batch."""
        step = _Step(batch, config)
        with self._world.leading:
            self._tell(step)
            return step.apply(self.learner)

    def logprobs(self, tokens: TokenSequence) -> torch.Tensor:
        """`trained_logprobs` of one sequence, without a gradient. `[T]`"""
        score = _Score(tokens)
        with self._world.leading:
            self._tell(score)
            return score.apply(self.learner)

    def close(self) -> None:
        """Lets the other processes forget it; where they are gone, there is nothing left to forget."""
        with self._world.leading, contextlib.suppress(WorldError):
            self._tell(_Close())

    def _tell(self, command: object) -> None:
        self._world.tell((self._number, command))


def follow(world: World) -> None:
    """What every process but the leader does, until the leader ends. Raises `WorldError` when it is lost.

    Ctrl-C is the leader's: it lets its step be finished.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    learners: dict[int, Learner] = {}
    while (heard := world.hear()) is not None:
        number, command = heard
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
            continue  # the leader has raised it too, and tells the user
