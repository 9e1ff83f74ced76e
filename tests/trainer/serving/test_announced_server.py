"""A server is announced once it answers, and the handlers of signals stay those of its caller."""

import asyncio
import signal
import socket

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gavel.trainer.serving.listener import AnnouncedServer, address_of, listen
from tests.limits import HANG_SECONDS


async def test_it_is_announced_when_it_answers_and_signals_are_left_alone() -> None:
    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    handler = signal.getsignal(signal.SIGTERM)
    announced = asyncio.Event()
    listener: socket.socket = listen("127.0.0.1", 0)
    app = Starlette(routes=[Route("/", hello)])
    server = AnnouncedServer(uvicorn.Config(app, log_level="error", lifespan="off"), announced.set)
    assert not announced.is_set()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with asyncio.timeout(HANG_SECONDS):
        await announced.wait()
        assert signal.getsignal(signal.SIGTERM) is handler
        async with httpx.AsyncClient() as client:
            assert (await client.get(address_of(listener, "127.0.0.1"))).text == "hello"
        server.should_exit = True
        await serving
