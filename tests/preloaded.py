"""Imported once by the process that `tests.forked` forks the tests' processes from: what takes seconds to load."""
# ruff: noqa: E402

import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
gc.disable()  # searching for cycles takes half of the time

import peft  # noqa: F401
import torch
import transformers  # noqa: F401

import gavel.local
import gavel.trainer.embedded
import gavel.trainer.learner.learner
import gavel.trainer.serving.openai_server  # noqa: F401
from gavel.llm.providers import load_litellm

load_litellm()
torch.set_num_threads(1)
gc.freeze()
gc.enable()
