"""What libraries say at import that no user can act on stays unsaid."""

import logging

import pytest

import gavel.trainer  # noqa: F401  (the filter is set up by the import)

pytestmark = pytest.mark.slow


def test_that_bitsandbytes_misses_a_kernel_which_is_not_used_is_not_told() -> None:
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    assert logger.level == logging.ERROR, "a warning is not told, an error is"
