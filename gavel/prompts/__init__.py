"""Words for models: Jinja templates, and the one function that renders them.

Text from outside enters a template only as a variable; a template is never built from it.
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
        loader=FileSystemLoader(_ROOT),
        undefined=StrictUndefined,
        autoescape=False,  # prompts are plain text
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def render(name: str, **values: object) -> str:
    """The text of the template `name` ("judge/system.j2"), filled with `values`.

    Raises `jinja2.TemplateNotFound`, or `jinja2.UndefinedError` when the template names a value that is not given.
    """
    return _environment().get_template(name).render(**values)


@cache
def template_id(name: str) -> str:
    """`name@hash`: the same as long as the template's source is, so that a result can tell which words made it."""
    source, _, _ = FileSystemLoader(_ROOT).get_source(_environment(), name)
    return f"{name}@{content_hash(source)}"


def content_hash(text: str) -> str:
    """Twelve hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
