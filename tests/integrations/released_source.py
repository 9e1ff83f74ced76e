"""Pieces of released packages that need GPUs to be imported: their source, read and run without the rest.

`make test-adapters` installs the packages without what they require.
"""

import __future__

import ast
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(package: str, file: str) -> dict[str, Definition]:
    """The functions and classes of a file of an installed package, with methods as `Class.method`."""
    try:
        found = distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"make test-adapters installs {package}")
    tree = ast.parse(Path(str(found.locate_file(file))).read_text())
    named = {node.name: node for node in tree.body if isinstance(node, Definition)}
    methods = {
        f"{name}.{node.name}": node
        for name, kind in named.items()
        if isinstance(kind, ast.ClassDef)
        for node in kind.body
        if isinstance(node, Definition)
    }
    return named | methods


def parameters(function: Definition) -> list[str]:
    assert not isinstance(function, ast.ClassDef)
    return [argument.arg for argument in function.args.args]


def fields(kind: Definition) -> set[str]:
    """The annotated names of a class."""
    return {
        node.target.id for node in kind.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def executed(package: str, file: str, *names: str, **scope: Any) -> dict[str, Any]:
    """The named functions and classes, run without their decorators among the names of `scope`."""
    found = definitions(package, file)
    for name in names:
        found[name].decorator_list = []
    module = ast.Module([found[name] for name in names], type_ignores=[])
    exec(compile(module, file, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope
