"""Numbers and times as the pages show them: times in UTC, `–` for what is not known."""

import math
from datetime import UTC, datetime

UNKNOWN = "–"


def number(value: int | None) -> str:
    """12345 → "12,345"."""
    return UNKNOWN if value is None else f"{value:,}"


def score(value: float | None) -> str:
    """0.8251 → "0.83"."""
    return UNKNOWN if value is None else f"{value:.2f}"


def usd(value: float | None) -> str:
    """0.00123 → "0.0012 USD": two significant digits below ten cents, so that no cost is shown as nothing."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 0.1:
        return f"{value:.{min(1 - math.floor(math.log10(abs(value))), 12)}f} USD"
    return f"{value:,.2f} USD"


def duration(seconds: float | None) -> str:
    """0.25 → "250 ms", 2.5 → "2.5 s", 75 → "1 min 15 s", 3700 → "1 h 1 min"."""
    if seconds is None:
        return UNKNOWN
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(seconds: float) -> str:
    """Unix seconds → "2026-11-22 10:21:36"."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(seconds: float) -> str:
    """Unix seconds → "2026-11-22T10:21:36Z", for programs."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


FILTERS = {"number": number, "score": score, "usd": usd, "duration": duration, "clock": clock, "iso": iso}
"""Of the templates."""
