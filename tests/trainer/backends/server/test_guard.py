import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gavel.trainer.backends.remote.wire import PROTOCOL, PROTOCOL_HEADER
from gavel.trainer.backends.server.app import Activity, Guard, given_key

KEY, CAPTURE = "the-key-of-the-server", "a-key-of-one-capture"


async def reached(request: Request) -> PlainTextResponse:
    return PlainTextResponse("reached")


@pytest.fixture
async def client():
    methods = ["GET", "POST", "DELETE", "PUT", "PATCH"]
    app = Guard(
        Starlette(routes=[Route("/{path:path}", reached, methods=methods)]),
        KEY,
        lambda request: given_key(request) in (KEY, CAPTURE),
        Activity(),
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://backend") as client:
        yield client


async def status(client: httpx.AsyncClient, path: str, key: str, *, protocol: str = str(PROTOCOL)) -> int:
    headers = {"Authorization": f"Bearer {key}", PROTOCOL_HEADER: protocol}
    return (await client.post(path, headers=headers)).status_code


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/openai/clerk/jobs",
        "/v1/models/desk/openai/jobs",
        "/v1/models/openai/v1/jobs",
        "/v1/models/openai/openai/files/openai/v1/adapter",
        "/v1/models/desk/clerk/files/openai/v1/x",
        "/v1/models/desk/clerk/history?next=/openai/v1/",
        "/v1/uploads/openai/v1/",
        "/openai/v1/",
    ],
)
async def test_the_key_of_a_capture_reaches_nothing_but_its_endpoint(client, path):
    assert await status(client, path, CAPTURE) == 401
    assert await status(client, path, KEY) == 200


async def test_the_endpoint_takes_the_key_of_a_capture_and_asks_for_no_protocol(client):
    path = "/v1/models/openai/clerk/openai/v1/chat/completions"
    assert await status(client, path, CAPTURE, protocol="") == 200
    assert await status(client, path, "another") == 401


async def test_another_protocol_is_refused(client):
    assert await status(client, "/v1/models/desk/clerk/jobs", KEY, protocol="0") == 426
    assert await status(client, "/healthz", "", protocol="") == 200
