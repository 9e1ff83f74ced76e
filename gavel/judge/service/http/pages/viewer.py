"""Who looks at a page: whoever signed in with an API key, or anyone where the service has no keys."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from gavel.judge.service.engine.admission import Admission, Visitor

COOKIE = "gavel_session"


async def _viewer(request: Request) -> Visitor:
    admission: Admission = request.app.state.engine.admission
    return await admission.visitor(request.cookies.get(COOKIE, ""))


TheViewer = Annotated[Visitor, Depends(_viewer)]
"""Of a route: who looks. Its page needs a session where the service has keys."""
