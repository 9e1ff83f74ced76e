"""Imported by the process that services are forked from: what a service loads when it starts."""

import asyncio

import tests.judge.service.processes  # noqa: F401
from gavel.judge.service.engine.engine import load_libraries
from gavel.llm.providers import load_litellm

load_litellm()
asyncio.run(load_libraries())
