"""Who asks: the API key of a request, or of a browser's session, and the projects that it may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request."""

    key_id: str = ""
    """Id of the API key; empty without keys."""
    projects: tuple[str, ...] | None = None
    """Projects that it may use; None = all."""
    judges: frozenset[str] | None = None
    """Judge models that may judge for it; None = all that the service allows."""
    traceparent: str | None = None
    """W3C trace context of the request; None where it names none, or nothing is traced."""

    def may_use(self, project: str) -> bool:
        return self.projects is None or project in self.projects

    def project_of(self, named: str) -> str:
        """The project of a request: the one that it names, else the caller's first."""
        return named or (self.projects[0] if self.projects else "")


ANYONE = Caller()
"""Whoever asks a service without keys."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever looks at a page."""

    caller: Caller = ANYONE
    key_name: str = ""
    """Name of the API key that the session was begun with; empty without keys."""
