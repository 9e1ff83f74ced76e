"""`/healthz`, `/readyz`, `/metrics`: for whatever watches the service."""

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from gavel.judge.service.http.problems import Problem, documented
from gavel.judge.service.http.route_access import TheCaller, TheEngine

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the process answers", response_class=PlainTextResponse)
async def healthz() -> str:
    """`ok` as long as the process runs."""
    return "ok"


@router.get(
    "/readyz", summary="Whether groups can be accepted", response_class=PlainTextResponse, responses=documented(503)
)
async def readyz(engine: TheEngine) -> str:
    """`ok` when the database can be read and written, the judge can be asked, and the service is not stopping."""
    await engine.check_database()
    if engine.is_stopping:
        raise Problem(503, "stopping", "the service is stopping.", "Ask another process.", {"Retry-After": "5"})
    if (stopped := engine.judges.default.stopped) is not None:
        raise Problem(503, "judge-stopped", stopped.message, stopped.remedy)
    return "ok"


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=PlainTextResponse,
    responses=documented(401, 429, 503),
)
async def metrics(engine: TheEngine, _: TheCaller) -> Response:
    """Counters, gauges and histograms of this process."""
    engine.metrics.waiting(engine.counts, len(engine.waiters))
    content, media_type = engine.metrics.exposition()
    return Response(content, media_type=media_type)
