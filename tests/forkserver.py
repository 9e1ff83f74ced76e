"""The process that tests fork others from: it has imported everything, so each of them starts at once.

A test process has one such server, whatever it is for, so nothing else may choose what the server imports.
"""

import multiprocessing
import sys
from multiprocessing.context import ForkServerContext


def forking() -> ForkServerContext:
    """The context whose `Process` is a fork of the server, which starts at the first one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded" if "torch" in sys.modules else "tests.judge.service.preloaded"])
    return context
