"""Self-contained HTML pages from Jinja templates: every value is escaped, and files are replaced atomically."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gavel.base.errors import GavelError
from gavel.base.files import write_atomically
from gavel.base.text import counted, duration
from gavel.reports.charts import BOX
from gavel.reports.transcript import transcribe


@cache
def environment(*folders: Path) -> Environment:
    """Jinja's, over `folders`, the templates of this package and its style sheets."""
    here = Path(__file__).parent
    found = Environment(
        loader=FileSystemLoader([*folders, here / "templates", here / "assets"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    named: dict[str, Any] = {"box": BOX, "transcribe": transcribe, "counted": counted, "duration": duration}
    found.globals.update(named)  # pyright: ignore[reportUnknownMemberType]
    return found


def render_page(template: str, **values: object) -> str:
    """Renders a file of `templates/` with the values."""
    return environment().get_template(template).render(**values)


def write_results(folder: Path, name: str, figures: Mapping[str, Any], html: str) -> Path:
    """Writes `figures` as NAME.json and the page as report.html, whose path it gives. Raises `GavelError`."""
    write_file(folder / f"{name}.json", json.dumps(figures, indent=1, default=str) + "\n")
    write_file(folder / "report.html", html)
    return folder / "report.html"


def write_file(path: Path, text: str) -> None:
    """Replaces `path` with the text. Raises `GavelError` when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode("utf-8", "replace"))  # JSON may hold lone surrogates, which UTF-8 cannot
    except OSError as error:
        raise GavelError(f"{path} cannot be written: {error.strerror or error}", "Choose another path.") from error
