"""examples/minimal_grpo.py stays short, public and true."""

import ast
import sys
from pathlib import Path

import pytest

import gavel
from tests.forked import script

MINIMAL = Path(__file__).parents[2] / "examples" / "minimal_grpo.py"


def test_the_whole_of_grpo_takes_at_most_150_lines_and_public_names_alone() -> None:
    source = MINIMAL.read_text()
    assert len(source.splitlines()) <= 150
    nodes = list(ast.walk(ast.parse(source)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert not any(isinstance(node, ast.ImportFrom) for node in nodes)
    assert imported - sys.stdlib_module_names == {"gavel"}
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gavel"
    }
    assert used <= set(gavel.__all__)


@pytest.mark.slow
def test_it_trains_and_prints_its_curve(tmp_path: Path) -> None:
    result = script(MINIMAL, "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("step  0: held-out success 0.")
    assert sum(line.startswith("    score ") for line in lines) == 8
    assert any(line.startswith("step  1: mean score 0.") for line in lines)
    assert [line.split()[0] for line in lines[-2:]] == ["0", "1"]
