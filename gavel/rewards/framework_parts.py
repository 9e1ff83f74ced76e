"""Classes and functions of a framework, looked up when its trainer calls a hook: nothing here depends on one."""

from importlib import import_module
from typing import Any


def part(module: str, name: str) -> Any:
    """`name` of the module. Raises `ImportError` where the framework is not installed."""
    return getattr(import_module(module), name)
