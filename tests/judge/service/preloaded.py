"""Imported by the process that services are forked from: what a service loads when it starts."""

import asyncio

import litellm  # noqa: F401

from gavel.judge.service.engine import load_libraries

asyncio.run(load_libraries())
