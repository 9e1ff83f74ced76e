"""The optional parts of an installation, as the distribution's own metadata lists them.

What needs an extra that is not installed raises `MissingExtraError`; `gavel doctor` shows all extras.
"""

import re
from importlib.metadata import PackageNotFoundError, requires, version

from gavel.llm.errors import GavelError
from gavel.llm.installation import DISTRIBUTION, install_line

EXTRAS = ("train", "mcp", "parquet", "service", "s3", "cloud", "deploy", "otel", "trackio", "rl4lms", "real", "gpu")

_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(\[(?P<nested>[\w-]+)])?.*;.*extra == ["'](?P<extra>[\w-]+)["']""")


class MissingExtraError(GavelError, ImportError):
    """Something needs an optional part that is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed.", install_line(extra))


def installed_version(distribution: str) -> str | None:
    """Its version, without importing it; None = not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def missing_parts(extra: str) -> list[str]:
    """Distributions that the extra asks for, and those that extras within it do, that are not installed."""
    missing: list[str] = []
    for requirement in requires(DISTRIBUTION) or ():
        found = _REQUIREMENT.match(requirement)
        if found is None or found["extra"] != extra:
            continue
        if found["name"] == DISTRIBUTION and found["nested"]:
            missing += missing_parts(found["nested"])
        elif installed_version(found["name"]) is None:
            missing.append(found["name"])
    return missing


def need_extra(extra: str, what: str) -> None:
    """Raises `MissingExtraError` when the extra is not installed, which `what` needs."""
    if missing := missing_parts(extra):
        raise MissingExtraError(what, missing[0], extra)
