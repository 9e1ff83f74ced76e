"""A run's page, written again while the run goes on; never more than a fiftieth of the run's time goes into it."""

import logging
import time
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.reports.run_page import write_run_report

_SHARE = 50

logger = logging.getLogger(__name__)


class LiveReport:
    """The page of one run directory. A page that cannot be written is warned of, and the run goes on."""

    def __init__(self, directory: Path, page: Path | None = None) -> None:
        """`page`: default report.html of the run."""
        self._directory = directory
        self._page = page
        self._due = 0.0

    def write_if_due(self) -> None:
        """Writes the page unless the time since the last one is short beside what that one took."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> Path | None:
        """Writes the page; None where that failed."""
        started = time.monotonic()
        try:
            return write_run_report(self._directory, self._page)
        except GavelError as error:
            logger.warning("the report of %s was not written: %s", self._directory, error)
            return None
        finally:
            now = time.monotonic()
            self._due = now + _SHARE * (now - started)
