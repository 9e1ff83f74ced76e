"""`reference/api.md`: every name of `gavel/__init__.pyi`, by what it is for, with its signature and docstring.

The docstrings are rendered by mkdocstrings; this page only says which, and in which order.
"""

import re
from pathlib import Path

STUB = Path(__file__).parents[2] / "gavel" / "__init__.pyi"
HEAD = """# Public names

What `import gavel` offers. These names, their parameters and what they return change as
[versions](../versions.md) says; a module that is not listed here may change at any time.
"""
PARTS = (
    ("Command line in code", ("cli",)),
    ("Judge", ("judge",)),
    ("Judge as other trainers' reward", ("integrations",)),
    ("Scenarios and trajectories", ("scenarios",)),
    ("Models, backends and training", ("trainer",)),
    ("Calls, budgets, errors", ("llm",)),
)


def public_names() -> dict[str, str]:
    """Public name to its full path, in the stub's order."""
    imports = re.findall(r"^from \.([\w.]*) import (\w+) as (\w+)$", STUB.read_text(), re.MULTILINE)
    return {name: f"gavel.{module}.{held}".replace("..", ".") for module, held, name in imports}


def page() -> str:
    """The page: a section a part, one entry a name."""
    lines = [HEAD]
    left = {**public_names(), **_modules()}
    for title, floors in PARTS:
        names = {name: path for name, path in left.items() if path.split(".")[1] in floors}
        left = {name: path for name, path in left.items() if name not in names}
        lines += [f"## {title}", ""]
        for name, path in names.items():
            lines += [f"::: {path}", "    options:", f"      heading: gavel.{name}", f"      toc_label: {name}", ""]
    if left:
        raise ValueError(f"{sorted(left)} have no place on the page of public names: name their floor in PARTS.")
    return "\n".join(lines)


def _modules() -> dict[str, str]:
    """Names that are modules, such as `gavel.integrations`."""
    return {
        name: f"gavel.{name}" for name in re.findall(r"^from \. import (\w+) as \w+$", STUB.read_text(), re.MULTILINE)
    }
