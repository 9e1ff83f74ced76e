"""A pytest plugin that hides bitsandbytes, as where the extra that brings it is not installed."""

import sys
from typing import Any

sys.modules["bitsandbytes"] = None  # type: ignore[assignment]  # imports fail, and find_spec gives None


def pytest_report_header(config: Any) -> str:
    return "bitsandbytes is hidden"
