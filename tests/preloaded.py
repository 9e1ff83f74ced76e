"""Imported once by the process that tests fork others from: all that takes long to load or to do for the first time."""
# ruff: noqa: E402

import asyncio
import gc
import os
import pkgutil

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # read when the libraries are imported
gc.disable()  # searching for cycles takes half of the time

import peft  # noqa: F401
import torch
import transformers  # noqa: F401
import uvicorn.lifespan.on
import uvicorn.protocols.http.httptools_impl
import uvicorn.server  # noqa: F401
from openai import AsyncOpenAI

import gavel.cli
import gavel.local
import gavel.trainer.embedded
import gavel.trainer.learner.learner
import gavel.trainer.loop.train_loop
import gavel.trainer.serving.openai_server
import tests.judge.service.preloaded
import tests.judge.service.processes
import tests.trainer.learner.test_learner
import tests.trainer.processes
import tests.trainer.test_resume  # noqa: F401
from gavel.judge.judge import Judge
from gavel.llm.providers import load_litellm
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoraSettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.policy.policy import Policy

for module in pkgutil.iter_modules(gavel.cli.__path__, "gavel.cli."):
    __import__(module.name)
load_litellm()
torch.set_num_threads(1)
AsyncOpenAI(api_key="none").chat.completions  # noqa: B018  libraries import parts of themselves when first used
Policy(EMBEDDED_POLICY, LoraSettings(rank=4))
list(find_scenario("returns_desk").tasks())
asyncio.run(
    Judge("stand-in").score(
        TrajectoryGroup(Trajectory(messages_and_choices=[{"role": "assistant", "content": text}]) for text in "ab")
    )
)
gc.freeze()
gc.enable()
