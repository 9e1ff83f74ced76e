"""Imported by the process that those of a `ProcessGroup` are forked from: what each would load when it starts."""

import asyncio
import gc

from gavel.judge.service.engine.engine import load_libraries
from gavel.llm.providers import load_litellm

load_litellm()
asyncio.run(load_libraries())
gc.collect()
gc.freeze()  # a search for cycles would write to every page that the processes share
