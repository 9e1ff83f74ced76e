"""The layout of the repository: floors, wings and links."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "gavel").rglob("*.py"))
WINGS = sorted(path.parent for path in MODULES if path.name == "__init__.py")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_error_is_raised_where_python_before_3_11_4_wraps_it_in_a_group() -> None:
    groups = [
        (name(path), node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.TryStar)
    ]
    handled = [(file, part) for file, node in groups for handler in node.handlers for part in ast.walk(handler)]
    assert [f"{file}:{part.lineno}" for file, part in handled if isinstance(part, ast.Raise)] == []


def test_imports_go_downward_only() -> None:
    # In a process of its own: import-linter's own logging configuration disables every logger that exists.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    lint = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout + lint.stderr


@pytest.mark.parametrize("link", ["judge", "prompts", "scenarios", "trainer"])
def test_the_links_at_the_top_point_into_the_package(link: str) -> None:
    assert os.readlink(ROOT / link) == f"gavel/{link}"
    assert (ROOT / link / "__init__.py").is_file()


def test_every_folder_of_modules_is_a_package() -> None:
    assert {path.parent for path in MODULES} == set(WINGS)
