"""All prompts to models: Jinja templates, and the one function that renders them.

    render("judge/repair.j2", problem="there is no score for W7QX", labels=["W7QX", "M4TT"], states=False)
    template_id("judge/repair.j2")   # "judge/repair.j2@" and 12 hex digits of its source

Untrusted text enters a template only as the value of a variable; a template is never built from it.
"""

import hashlib
from functools import cache
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

_ROOT = Path(__file__).parent


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        loader=FileSystemLoader((_ROOT, _ROOT.parent / "integrations")),
        undefined=StrictUndefined,
        autoescape=False,  # prompts are plain text
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def render(name: str, **values: object) -> str:
    """The text of the template `name` ("judge/system.j2"; "verl/run.j2" of an integration) with `values`.

    Raises `jinja2.TemplateNotFound`, and `jinja2.UndefinedError` for a variable without a value.
    """
    return _environment().get_template(name).render(**values)


@cache
def template_id(name: str) -> str:
    """`name@hash` of the template's source, which results record so that a change of prompts shows."""
    source, _, _ = FileSystemLoader(_ROOT).get_source(_environment(), name)
    return f"{name}@{content_hash(source)}"


def content_hash(*texts: str) -> str:
    """The first twelve hex digits of the SHA-256 of the texts, one after the other."""
    return hashlib.sha256("".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
