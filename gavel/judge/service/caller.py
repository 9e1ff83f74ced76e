"""Who asks: the API key of a request, and the projects that it may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request."""

    key_id: str = ""
    """Id of the API key; empty without keys."""
    projects: frozenset[str] | None = None
    """Projects that it may use; None = all."""

    def may_use(self, project: str) -> bool:
        return self.projects is None or project in self.projects


ANYONE = Caller()
"""Whoever asks a service without keys."""
