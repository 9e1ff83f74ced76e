"""The processes of one training run, started by `torchrun` or `launch`.

    world = join()
    with world.together():              an error in one process is raised in all of them
        gradients = compute()
    world.sum_(gradients)               in place, over all processes

Process 0 is the leader: it broadcasts commands, and only it writes files, samples and judges. Every wait has a
deadline.
"""

import atexit
import contextlib
import functools
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from gavel.base.errors import GavelError

T = TypeVar("T")

_STEP = timedelta(minutes=30)
"""Timeout of the collective operations within a step."""
_COMMAND = timedelta(days=1)
"""Timeout of the wait for the leader's next command; the leader samples and judges in between."""
_GO_ON = "Its own output says why. The same command goes on from the last finished step."
_FINISH_STEP = "3600"
"""Seconds that the leader of an interrupted run has to finish its step."""


class WorldError(GavelError):
    """The processes of a run cannot communicate, or one of them has failed."""


class World:
    """This process and its peers; `World()` is a single process, for which every operation does nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """With `size` above 1 all processes must create one at once, after initializing the default group."""
        self.rank = rank
        self.size = size
        self.leading = threading.RLock()
        """The leader holds it while a command is executed."""
        self.lost = False
        """Whether the connection between the processes is lost, for good."""
        if size > 1:
            self._commands = _group(_COMMAND if rank else _STEP)
            self._objects = _group(_STEP)

    def broadcast(self, command: object) -> None:
        """Sends a command from the leader to all other processes, which `receive` it."""
        if self.size > 1:
            with self._reachable():
                dist.broadcast_object_list([command], src=0, group=self._commands)

    def receive(self) -> Any:
        """Waits for the leader's next command."""
        received: list[Any] = [None]
        with self._reachable():
            dist.broadcast_object_list(received, src=0, group=self._commands)
        return received[0]

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with self._reachable():
            dist.all_gather_object(found, value, group=self._objects)
        return found

    def sum_(self, tensor: torch.Tensor) -> None:
        """All-reduce: replaces the tensor by its sum over all processes."""
        if self.size > 1:
            with self._reachable():
                dist.all_reduce(tensor)

    @contextlib.contextmanager
    def together(self, *, communicating: bool = False) -> Iterator[None]:
        """A block that all processes execute: at its end an error of one is raised in all.

        `communicating`: the block itself contains collective operations. Then the other processes are blocked in one
        when a process fails and cannot be told: the error is raised in the failed process only, and the run must end.
        """
        own: Exception | None = None
        try:
            yield
        except Exception as error:
            self.lost = self.lost or (communicating and self.size > 1)
            if self.size == 1 or self.lost:
                raise
            own = error
        for rank, failure in enumerate(self.gather(_described(own))):
            if failure is not None:
                kind, message, remedy = failure
                raise kind(f"{message} (process {rank} of {self.size})", remedy) from own

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        if self.lost:
            raise WorldError("the connection between the processes of this run is lost", _GO_ON)
        try:
            yield
        except RuntimeError as error:  # base class of torch's network and timeout errors
            self.lost = True
            raise _unreachable(error) from error


def _group(timeout: timedelta) -> dist.ProcessGroup:
    """A process group for Python objects."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))


def _unreachable(error: RuntimeError) -> WorldError:
    reason = re.sub(r"^\[\S*\] ", "", str(error).splitlines()[0]).split(". This is")[0]
    return WorldError(f"a process of this run is gone, or does not answer: {reason}", _GO_ON)


def _described(error: Exception | None) -> tuple[type[GavelError], str, str] | None:
    match error:
        case None:
            return None
        case GavelError():
            return type(error), error.message, error.remedy
        case _:
            return WorldError, f"{type(error).__name__}: {error}", _GO_ON


def launched() -> bool:
    """Whether `torchrun` or `launch` started this process."""
    return dist.is_torchelastic_launched()


@functools.cache
def join() -> World:
    """The world of this process; the first call connects to the other processes. Raises `WorldError`."""
    if not launched() or os.environ["WORLD_SIZE"] == "1":
        return World()
    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    gpus = torch.cuda.device_count()
    if gpus and local >= gpus:
        raise WorldError(f"there are more processes than GPUs here ({gpus})", f"Start no more than --nproc {gpus}.")
    if gpus:
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_STEP)
        world = World(rank, size)
    except RuntimeError as error:
        raise _unreachable(error) from error
    atexit.register(_leave, world)
    return world


def _leave(world: World) -> None:
    """Runs at exit: the leader ends the others, and each process stops its threads while Python still runs."""
    if world.rank == 0:
        with contextlib.suppress(WorldError):  # they may have ended before
            world.broadcast(None)
    dist.destroy_process_group()


def launch(processes: int) -> int:
    """Runs this same command in `processes` processes on this machine, and returns the exit status of the first.

    They share this terminal. Ctrl-C reaches the leader, which finishes its step with the others. Raises `WorldError`
    when another process fails, which ends them all.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _FINISH_STEP)
    logging.disable()  # torch logs every signal and every child as a traceback
    config = LaunchConfig(1, 1, processes, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", max_restarts=0)
    try:
        elastic_launch(config, sys.executable)(*sys.orig_argv[1:])
    except SignalException as error:
        return 128 + error.sigval
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if rank == 0 and failure.exitcode > 0:
            return failure.exitcode
        how = f"was killed by {signal.Signals(-failure.exitcode).name}" if failure.exitcode < 0 else "failed"
        raise WorldError(f"process {rank} of {processes} {how}, which ended the run", _GO_ON) from error
    return 0
