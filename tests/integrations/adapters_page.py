"""The programs of docs/adapters.md, and the modules that they import where a framework cannot be installed."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"


def program(heading: str) -> str:
    """The Python program under a heading, with the stand-in as the judge, and a rubric that it can read."""
    section = PAGE.read_text().partition(f"\n## {heading}")[2].partition("\n## ")[0]
    (found,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    judge = '"stand-in"' if "rubric=" in found else '"stand-in", rubric="- ends with a message"'
    return found.replace('"openai/gpt-5-mini"', judge)


def run(heading: str) -> dict[str, Any]:
    """The names that the program defines."""
    names: dict[str, Any] = {"__name__": "from_the_page"}
    exec(compile(program(heading), str(PAGE), "exec"), names)
    return names


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    """Puts a module with these parts, and its packages, where `import` finds them."""
    module = ModuleType(name)
    vars(module).update(parts)
    monkeypatch.setitem(sys.modules, name, module)
    package = name.rpartition(".")[0]
    if package and package not in sys.modules:
        stand_in(monkeypatch, package)
