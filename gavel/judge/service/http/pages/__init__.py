"""What pages share: their headers and answers; rows, score bars, and numbers and times as text."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from gavel.scenarios.judgement import Judgement, Vote

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "img-src 'self'; script-src 'self'; style-src 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}
"""Headers of pages."""


def respond_page(request: Request, html: str, headers: Mapping[str, str], status: int = 200) -> Response:
    """The page; 304 without a body if the browser's copy has the same content."""
    content = html.encode("utf-8", "replace")  # a lone surrogate cannot be encoded
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    sent = {"ETag": tag, **headers}
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=sent)
    return Response(content, status, sent, "text/html; charset=utf-8")


WIDTH, HEIGHT, MARGIN = 128, 20, 5
"""Size of a score bar, and its margin left and right."""


@dataclass(frozen=True, slots=True)
class ScoreBar:
    """Positions along the line, left to right."""

    score: float
    low: float
    """Position of the score minus its standard error, at least 0."""
    high: float
    votes: tuple[float, ...]

    @classmethod
    def of(cls, score: float, standard_error: float | None, votes: Sequence[float]) -> "ScoreBar":
        """The bar of a score in [0, 1]; without a standard error, low and high are the score."""

        def position(score: float) -> float:
            return round(MARGIN + (WIDTH - 2 * MARGIN) * min(max(score, 0.0), 1.0), 1)

        error = standard_error or 0.0
        return cls(position(score), position(score - error), position(score + error), tuple(map(position, votes)))


MOST_COLUMNS = 8
"""Max orders whose votes are shown in columns; with more, each member shows its own votes only."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    place: int
    """Index in the request, from 0."""
    id: str
    judgement: Judgement
    votes: tuple[Vote | None, ...]
    """One vote per order that is a column, None if the member has none; else the member's own votes. Empty without
    any."""
    bar: ScoreBar | None


def member_rows(ids: Sequence[str], members: Sequence[Judgement], *, by_score: bool) -> list[MemberRow]:
    """The rows in the order of the request, or sorted by score with unscored members last."""
    orders = {vote.order for member in members for vote in member.votes}
    columns = range(max(orders) + 1) if orders and max(orders) < MOST_COLUMNS else None
    rows: list[MemberRow] = []
    for place, (name, member) in enumerate(zip(ids, members, strict=True)):
        by_order = {vote.order: vote for vote in member.votes}
        shown = sorted(by_order) if columns is None or not by_order else columns
        cast = [vote.score for vote in member.votes]
        bar = None if member.score is None else ScoreBar.of(member.score, member.standard_error, cast)
        rows.append(MemberRow(place, name, member, tuple(by_order.get(order) for order in shown), bar))
    if by_score:
        rows.sort(key=lambda row: math.inf if row.judgement.score is None else -row.judgement.score)
    return rows


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


FILTERS = {"number": number, "score": score, "usd": usd, "duration": duration, "clock": clock}
"""Template filters."""
