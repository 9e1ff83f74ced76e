"""The viewer's pages over an index.

app = create_app(index, list_runs, token=None)

/                             runs and judged files
/run/{project}/{name}         a run: curves, and a row for each step
/groups?run=…&show=…&q=…      groups by filter and search
/group/{file}/{number}        one group, its members side by side
/vote/{file}/{number}?…       what the judge was asked for a vote, and its reply
"""

import asyncio
import hmac
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from gavel.base.errors import GavelError
from gavel.base.files import is_inside
from gavel.base.network import is_loopback
from gavel.base.text import counted
from gavel.llm.budget import cost_in_words
from gavel.reports.page import environment
from gavel.reports.run_figures import run_charts, step_rows
from gavel.reports.run_outcome import outcome_of_run
from gavel.reports.transcript import pretty_json, shown_text
from gavel.reports.viewer.annotations import AnnotationError, Annotations, blind_order, read_scores
from gavel.reports.viewer.group_view import cassette_of, group_view, read_vote
from gavel.reports.viewer.index import (
    PAGE_SIZE,
    SHOWN,
    SORTS,
    FilterError,
    GroupFilter,
    Index,
    NoSuchGroup,
    place_of,
    read_number,
)
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.runs.run_listing import RunSummary

_LIVE_SECONDS = 2
"""Between looks of the script at what may change."""
_FORM_BYTES = 100_000
_ASSETS: list[str | tuple[str, str]] = [(each, "assets") for each in ("gavel.reports", "gavel.reports.viewer")]


def create_app(index: Index, list_runs: Callable[[], Iterable[RunSummary]], *, token: str | None = None) -> Starlette:
    """`token`: None where only this machine can reach it."""
    pages = _Pages(index, list_runs)
    return Starlette(
        routes=[
            Route("/", pages.runs),
            Route("/run/{name:path}", pages.run),
            Route("/groups", pages.groups),
            Route("/group/{path:path}/{number:int}", pages.group),
            Route("/vote/{path:path}/{number:int}", pages.vote),
            Route("/annotate", pages.next_to_annotate),
            Route("/annotate/{path:path}/{number:int}", pages.annotate),
            Route("/annotate/{path:path}/{number:int}", pages.annotated, methods=["POST"]),
            Route("/annotations/golden.json", pages.golden),
            Mount("/assets", StaticFiles(packages=_ASSETS)),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={GavelError: _told, 404: _not_found},
    )


class _Pages:
    """Each method runs in a thread: it reads files."""

    def __init__(self, index: Index, list_runs: Callable[[], Iterable[RunSummary]]) -> None:
        self._index = index
        self._list_runs = list_runs
        self._annotations = Annotations(index.root)

    def _runs(self) -> Iterator[RunSummary]:
        for run in self._list_runs():
            root = self._index.root
            if all(is_inside(root, file) for file in (root / run.name).glob("*") if file.is_file()):
                yield run
            else:
                why = "a file of it is a link to one elsewhere; copy that one here"
                yield RunSummary(run.name, "unreadable", 0, None, why, "–", run.age)

    def runs(self, request: Request) -> Response:
        found, counts = sorted(self._runs(), key=lambda run: run.age), self._index.counts()
        return self._live_page(
            request,
            "runs.html.j2",
            is_changing=any(run.state == "running" for run in found),
            runs=found,
            counts=counts,
            files={name: count for name, count in counts.items() if name not in {run.name for run in found}},
            problems=self._index.problems(),
            root=str(self._index.root),
            annotated=len(self._annotations.places()),
            annotations_file=str(self._annotations.path),
        )

    def run(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        found = next((run for run in self._runs() if run.name == name), None)
        if found is None:
            raise NoSuchGroup(f"there is no run {name}", "Look at the list of runs.")
        directory, is_readable = self._index.root / name, found.state != "unreadable"
        rows = whole_rows(directory / "metrics.jsonl").rows if is_readable else []
        return self._live_page(
            request,
            "run.html.j2",
            is_changing=found.state == "running",
            run=found,
            outcome=outcome_of_run(directory, rows) if is_readable else [],
            charts=run_charts(rows),
            steps=step_rows(rows),
            splits=self._index.choices("split", name),
            problems=[(path, why) for path, why in self._index.problems() if place_of(path)[0] == name],
        )

    def groups(self, request: Request) -> Response:
        wanted = GroupFilter.read(request.query_params)
        entries, count = self._index.groups(wanted)
        return self._live_page(
            request,
            "groups.html.j2",
            is_changing=wanted.page == 1,
            wanted=wanted,
            entries=entries,
            count=count,
            pages=-(-count // PAGE_SIZE),
            runs=self._index.choices("run"),
            splits=self._index.choices("split", wanted.run),
            steps=self._index.choices("step", wanted.run),
            shown=SHOWN,
            sorts=SORTS,
        )

    def _live_page(self, request: Request, template: str, *, is_changing: bool, **values: Any) -> Response:
        """A page that its script, or its reader, reloads while what it shows may change."""
        read = self._index.progress
        live = _LIVE_SECONDS if is_changing or read is not None else None
        return _page(request, template, live_seconds=live, read=read, **values)

    def group(self, request: Request) -> Response:
        place, asked = _place(request), request.query_params
        entry, group = self._index.entry(*place), self._index.group(*place)
        sort, members = asked.get("sort", ""), map(read_number, asked.getlist("member"))
        chosen = [member for member in members if member is not None]
        same = self._index.same_task(entry)
        at = next((at for at, each in enumerate(same) if each == entry), 0)
        return _page(
            request,
            "group.html.j2",
            entry=entry,
            group=group,
            view=group_view(group, sort, chosen),
            sort=sort,
            is_part=bool(chosen),
            earlier=same[at - 1] if at else None,
            later=same[at + 1] if at + 1 < len(same) else None,
            given=self._annotations.scores(*place),
        )

    def vote(self, request: Request) -> Response:
        path, _ = place = _place(request)
        member, at = (read_number(request.query_params.get(name, "")) for name in ("member", "vote"))
        if member is None or at is None:
            raise FilterError("the address names no vote", "It has member=… and vote=…, both from 0.")
        members = self._index.group(*place).trajectories
        judgement = members[member].judgement if member < len(members) else None
        if judgement is None or at >= len(judgement.votes):
            raise NoSuchGroup(f"member {member} has no vote {at}", "Go back to the group.")
        vote = judgement.votes[at]
        cassette = cassette_of(self._index.root, path)
        record = read_vote(cassette, vote) if cassette is not None and vote.reply_key else None
        entry = self._index.entry(*place)
        return _page(request, "vote.html.j2", entry=entry, member=member, vote=vote, record=record, cassette=cassette)

    def next_to_annotate(self, request: Request) -> Response:
        """A group of at least two judged members that has no scores of a person, drawn at random."""
        wanted = GroupFilter(run=request.query_params.get("run", "")[:500])
        found = self._index.draw(wanted, self._annotations.places())
        if found is None:
            raise NoSuchGroup("there is no group left to score", "Choose another run, or score one again.")
        return RedirectResponse(f"/annotate{group_address(*found).removeprefix('/group')}", 303)

    def annotate(self, request: Request) -> Response:
        place = _place(request)
        group = self._index.group(*place)
        return _page(
            request,
            "annotate.html.j2",
            entry=self._index.entry(*place),
            view=group_view(group, "", [], blind_order(*place, len(group.trajectories))),
            given=self._annotations.scores(*place),
            done=len(self._annotations.places()),
        )

    async def annotated(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _FORM_BYTES:
                raise FilterError("the form is too long", "It has one number for each member.")
        fields, place = dict(parse_qsl(body.decode("utf-8", "replace"))), _place(request)

        def save() -> str:
            group = self._index.group(*place)
            scores = read_scores(fields, len(group.trajectories))
            self._annotations.save(*place, group, scores)
            return self._index.entry(*place)["run"]

        return RedirectResponse(f"/annotate?{urlencode({'run': await asyncio.to_thread(save)})}", 303)

    def golden(self, request: Request) -> Response:
        found = [group.model_dump(mode="json") for group in self._annotations.golden()]
        headers = {"Content-Disposition": 'attachment; filename="golden.json"'}
        return Response(json.dumps(found, indent=1), 200, headers, "application/json")


def _place(request: Request) -> tuple[str, int]:
    """The file and number of the group that the address names."""
    return request.path_params["path"], request.path_params["number"]


def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, GavelError)
    status = 404 if isinstance(error, NoSuchGroup) else 422 if isinstance(error, FilterError | AnnotationError) else 500
    return _page(request, "problem.html.j2", status=status, message=error.message, remedy=error.remedy)


def _not_found(request: Request, error: Exception) -> Response:
    return _told(request, NoSuchGroup("there is no such page", "Go back to the list of runs."))


def _page(request: Request, template: str, *, status: int = 200, **values: object) -> Response:
    shown = {"path": request.url.path, "live_seconds": None, **values}
    text = _environment().get_template(template).render(shown)
    content = text.encode("utf-8", "replace")  # a lone surrogate cannot be encoded
    return Response(content, status, {"Cache-Control": "no-cache"}, "text/html; charset=utf-8")


def group_address(path: str, number: int) -> str:
    """The page of a group."""
    return f"/group/{quote(path)}/{number}"


@cache
def _environment() -> Environment:
    found = environment(Path(__file__).parent / "templates")
    texts = {"asset": "/assets/{}".format, "counted": counted, "pretty_json": pretty_json, "shown_text": shown_text}
    figures = {"number": "{:,}".format, "score": _two_digits, "usd": _usd}
    found.filters.update(figures | texts)  # pyright: ignore[reportUnknownMemberType]
    found.globals["group_address"] = group_address  # pyright: ignore[reportUnknownMemberType]
    return found


def _two_digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _usd(value: float | None) -> str:
    return "–" if value is None else cost_in_words(value, 0, 0)


COOKIE = "gavel-view"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "img-src 'self'; script-src 'self'; style-src 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Guard(BaseHTTPMiddleware):
    """Stands before all pages, and gives their answers the headers.

    A page of another site cannot read the viewer by a name of its own that leads to this machine: requests must name
    the host that is served. With a token, its first use puts it into a cookie, and takes it out of the address.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        """`token`: None for a viewer that listens on loopback alone."""
        super().__init__(app)
        self._token = token

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        answer = self._refusal(request) or await call_next(request)
        answer.headers.update(_HEADERS)
        return answer

    def _refusal(self, request: Request) -> Response | None:
        origin = request.headers.get("origin")  # browsers name the site that a form comes from
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            return PlainTextResponse("Pages of other sites may not send anything here.", 403)
        if self._token is None:
            if not is_loopback(request.url.hostname or ""):
                return PlainTextResponse("This viewer answers to 127.0.0.1 and localhost alone.", 421)
            return None
        if hmac.compare_digest(request.query_params.get("token", "").encode(), self._token.encode()):
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            answer = RedirectResponse(request.url.path + (f"?{urlencode(rest)}" if rest else ""), 303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._token.encode()):
            return None
        return PlainTextResponse("Open the address that `gavel view` printed: it has the token.", 403)
