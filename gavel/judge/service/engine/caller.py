"""Who asks: the API key of a request, or of a browser's session, and the projects that it may use.

A session is what the cookie of a browser holds that signed in with an API key. It is signed with the key's hash, so
that every process knows it and none stores it. It is not the key: it opens the pages for some hours, and no route of
the API takes it.
"""

from dataclasses import dataclass

from itsdangerous import BadData, URLSafeTimedSerializer

from gavel.judge.service.store.key_store import Key

SESSION_SECONDS = 12 * 3600
"""That a session is valid."""


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


def issue_session(key: Key) -> str:
    """A session of this key, from now."""
    return _sessions(key.token_hash).dumps(key.id)


def key_id_in(session: str) -> str:
    """The id of the key that a session says it is of; empty where it says none."""
    _, found = _sessions("").loads_unsafe(session)
    return found if isinstance(found, str) else ""


def is_valid_session(key: Key, session: str) -> bool:
    """Whether the session is one of this key, which is not revoked, and not over."""
    try:
        found = _sessions(key.token_hash).loads(session, max_age=SESSION_SECONDS)
    except BadData:
        return False
    return found == key.id and key.revoked_at is None


def _sessions(token_hash: str) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(token_hash, salt="gavel pages")
