"""Under which names servers answer for a model, and a sentence when that changes in mid-run."""

import logging
from collections.abc import Iterable

from gavel.judge.panel.ballot import Ballot

_LOG = logging.getLogger(__name__)


class ServedModels:
    """The names so far, by model asked."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def changes(self, ballots: Iterable[Ballot]) -> list[str]:
        """A sentence, once, for each model that another one answers for than before."""
        told: list[str] = []
        for ballot in ballots:
            name = ballot.replies[-1].served_by if ballot.replies else ""
            known = self._names.setdefault(ballot.model, [])
            if not name or name in known:
                continue
            if known:
                told.append(f"{ballot.model} is now served by {name}, before by {known[-1]}: scores may shift")
                _LOG.warning("%s", told[-1])
            known.append(name)
        return told
