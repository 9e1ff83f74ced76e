"""HTML pages that need nothing else: every value is escaped, and a page is written whole or not at all."""

import os
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gavel.errors import GavelError
from gavel.reports.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH


def render_page(template: str, **values: object) -> str:
    """The page that a template beside this file makes of the values; `box` is where charts are drawn."""
    environment = Environment(
        loader=FileSystemLoader(os.path.join(os.path.dirname(__file__), "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    box = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    return environment.get_template(template).render(box=box, **values)


def write_page(path: Path, html: str) -> None:
    """Raises `GavelError` when it cannot be written."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A lone surrogate, which JSON may bring along, has no UTF-8.
            unfinished.write_text(html, encoding="utf-8", errors="replace")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise GavelError(f"{path} cannot be written: {error.strerror or error}", "Choose another place.") from error
