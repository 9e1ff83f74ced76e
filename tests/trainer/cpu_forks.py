"""Runs of pytest that take this CPU for another, forked from one process that has imported what is slow to import.

Each line of standard input, `[VARIABLES, ARGUMENTS, FILE]` in JSON, is one run whose output goes into the file; the
answer is its status. PyTorch reads the variables when it computes for the first time, as bitsandbytes (so PEFT and TRL)
does when it is imported: what is imported here does not. The file's first line is what PyTorch took the CPU for.
"""
# ruff: noqa: E402

import gc
import json
import os
import sys

gc.disable()  # searching for cycles takes half of the time that imports take

import pytest
import torch
import torch._inductor.compile_fx
import torch.distributed.tensor
from transformers import Qwen3ForCausalLM  # noqa: F401

import gavel.judge.judge
import gavel.trainer.model  # noqa: F401
from gavel.llm.providers import load_litellm


def run(variables: dict[str, str], arguments: list[str], file: str) -> int:
    """The exit status of one run in a fork of this process."""
    child = os.fork()
    if not child:
        output = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ |= variables
        print(torch.backends.cpu.get_cpu_capability(), flush=True)
        status = pytest.main(arguments)
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    load_litellm()
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)
