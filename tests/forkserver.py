"""The process that tests fork others from: it has imported everything, so each of them starts at once.

A test process has one such server, or shares that of the process it was forked from, whatever it is for, so nothing
else may choose what the server imports. Tests of the judge alone need no PyTorch, so neither does their server.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import sys
from multiprocessing.context import ForkServerContext
from typing import Any

SETTINGS_FROM_OUTSIDE = (
    "GAVEL_JUDGE_MODEL",
    "GAVEL_PRICES",
    "GAVEL_RUNS",
    "OPENAI_API_KEY",
    "OPENAI_API_BASE",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "OPENROUTER_API_KEY",
    "PYTEST_ADDOPTS",
    "WANDB_API_KEY",
    "WANDB_MODE",
)
"""Variables that no test may see."""


def forking() -> ForkServerContext:
    """The context whose `Process` is a fork of the server, which starts at the first one."""
    context = multiprocessing.get_context("forkserver")
    trains = not sys.modules.keys().isdisjoint(("torch", "tests.forked"))
    context.set_forkserver_preload(["tests.preloaded" if trains else "tests.judge.service.preloaded"])
    return context


def share() -> None:
    """Starts the server now, also for the processes that are forked from this one."""
    for name in SETTINGS_FROM_OUTSIDE:
        os.environ.pop(name, None)
    forking()
    server: Any = multiprocessing.forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    server.ensure_running()
    server.ensure_running = lambda: None  # it asks for the server's status, which only its parent can
