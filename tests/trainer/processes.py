"""Processes as torchrun would start them, forked from one that has imported everything."""

import os
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from gavel.base.network import free_port
from gavel.trainer.distributed import World, join
from gavel.trainer.learner.replicas import follow_leader
from tests.forkserver import forking
from tests.limits import HANG_SECONDS


def led(lead: Callable[..., Any], *arguments: Any, nodes: int = 1, per_node: int = 2, prepare: Any = None) -> Any:
    """What `lead(world, *arguments)` returns in the leading process of a world; the others follow.

    `prepare(rank)` is called in every process first.
    """
    size, port = nodes * per_node, free_port()
    context = forking()
    receiver, sender = context.Pipe(duplex=False)
    running = []
    for rank in range(size):
        variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % per_node, "GROUP_RANK": rank // per_node}
        variables |= {"LOCAL_WORLD_SIZE": per_node, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables |= {"TORCHELASTIC_RUN_ID": "tests"}
        process = context.Process(target=_process, args=(variables, sender, prepare, lead, arguments), daemon=True)
        process.start()
        running.append(process)
    try:
        assert receiver.poll(HANG_SECONDS), "the leader hangs"
        outcome, problem = pickle.loads(receiver.recv_bytes())
        assert not problem, problem
        for process in running:
            process.join(HANG_SECONDS)
            assert process.exitcode is not None, "a process does not end"
        return outcome
    finally:
        for process in running:
            process.kill()


def _process(
    variables: dict[str, object], sender: Connection, prepare: Any, lead: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ |= {name: str(value) for name, value in variables.items()}
    torch.set_num_threads(1)
    if prepare:
        prepare(variables["RANK"])
    world: World = join()
    if world.rank:
        follow_leader(world)
        return
    try:
        told = lead(world, *arguments), None
    except BaseException:
        told = None, traceback.format_exc()
    sender.send_bytes(pickle.dumps(told))  # plainly: tensors would be shared, and be gone with this process
    if not world.lost:
        world.broadcast(None)  # as at the end of an interpreter, which a fork does not reach
