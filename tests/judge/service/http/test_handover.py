"""Connections that one process hands to another: here both are in this one, and the connections are real."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import pytest

from gavel.judge.service.http.handover import Handover, Handovers
from tests.limits import HANG_SECONDS


@dataclass
class Party:
    """One process, with the connections that it has taken."""

    handover: Handover
    judging: int = 0
    has_room: bool = True
    taken: list[tuple[socket.socket, bytes]] = field(default_factory=list[tuple[socket.socket, bytes]])

    news: asyncio.Event = field(default_factory=asyncio.Event)

    def adopt(self, connection: socket.socket, data: bytes) -> None:
        self.taken.append((connection, data))
        self.news.set()

    async def until_taken(self, number: int) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while len(self.taken) < number:
                self.news.clear()
                await self.news.wait()


@contextmanager
def parties(*judging: int, full: int | None = None) -> Iterator[list[Party]]:
    """Processes that judge so many groups; the one at `full` has no room for connections."""
    handovers = Handovers(len(judging), get_context())
    found = [Party(handovers.of(place), number, place != full) for place, number in enumerate(judging)]

    def take_part(party: Party) -> Iterator[list[Party]]:
        with party.handover.taking(party.adopt, lambda: party.judging, lambda: party.has_room):
            yield from within(found[found.index(party) + 1 :])

    def within(left: list[Party]) -> Iterator[list[Party]]:
        if left:
            yield from take_part(left[0])
        else:
            yield found

    try:
        yield from within(found)
    finally:
        handovers.close()
        for party in found:
            for connection, _ in party.taken:
                connection.close()


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection: the client's end, and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), HANG_SECONDS)
        with closing(client), closing(listener.accept()[0]) as server:
            yield client, server


async def test_a_connection_and_what_was_read_of_it_go_to_the_process_with_less_to_do() -> None:
    with parties(5, 3, 2) as (busy, other, idle), connection() as (client, server):
        assert busy.handover.hand_over(server.fileno(), b"GET /")
        server.close()
        await idle.until_taken(1)
        taken, data = idle.taken[0]
        assert (data, other.taken) == (b"GET /", [])
        taken.sendall(b"answer")
        assert client.recv(100) == b"answer"


@pytest.mark.parametrize("judging", [(0, 0), (1, 0), (3, 2), (2, 5)])
async def test_a_process_that_has_hardly_more_to_do_keeps_its_connection(judging: tuple[int, int]) -> None:
    with parties(*judging) as (own, _), connection() as (_, server):
        assert not own.handover.hand_over(server.fileno(), b"GET /")


async def test_what_is_on_its_way_counts_so_that_not_all_connections_go_to_one() -> None:
    with parties(6, 0, 0) as (busy, one, other), connection() as (_, server):
        while busy.handover.hand_over(server.fileno(), b"x"):
            assert one.taken == other.taken == []  # this test has not waited yet
        await one.until_taken(5)
        await other.until_taken(5)
        assert (len(one.taken), len(other.taken)) == (5, 5)


async def test_a_request_counts_from_its_beginning_to_its_end() -> None:
    with parties(0, 0) as (own, other), connection() as (_, server):
        own.handover.begin()
        own.handover.begin()
        assert own.handover.hand_over(server.fileno(), b"x")
        await other.until_taken(1)
        own.handover.end()
        assert not own.handover.hand_over(server.fileno(), b"x")


async def test_nothing_is_sent_to_a_process_without_room_or_one_that_stops() -> None:
    with parties(9, 0, full=1) as (busy, other), connection() as (_, server):
        assert not busy.handover.hand_over(server.fileno(), b"x")
        other.has_room = True
        other.handover.update()
        assert busy.handover.hand_over(server.fileno(), b"x")
        other.handover.stop_taking()
        other.handover.update()
        assert not busy.handover.hand_over(server.fileno(), b"x")


async def test_as_much_as_a_connection_reads_at_once_is_sent_and_more_is_kept() -> None:
    with parties(9, 0) as (busy, other), connection() as (_, server):
        assert busy.handover.hand_over(server.fileno(), bytes(2**18))
        await other.until_taken(1)
        assert other.taken[0][1] == bytes(2**18)
        assert not busy.handover.hand_over(server.fileno(), bytes(2**24))


async def test_a_full_channel_leaves_the_connection_where_it_is() -> None:
    with parties(10_000, 0) as (busy, other), connection() as (_, server):
        sent = 0
        while busy.handover.hand_over(server.fileno(), bytes(2**16)):
            sent += 1
        assert 0 < sent < 10_000
        await other.until_taken(sent)


async def test_what_a_process_has_not_taken_before_its_end_reaches_the_one_after_it() -> None:
    handovers = Handovers(2, get_context())
    busy, first = Party(handovers.of(0), 9), Party(handovers.of(1))
    with connection() as (_, server), closing(handovers):
        with busy.handover.taking(busy.adopt, lambda: busy.judging, lambda: True):
            with first.handover.taking(first.adopt, lambda: 0, lambda: True):
                assert busy.handover.hand_over(server.fileno(), b"x")
            second = Party(handovers.of(1))
            with second.handover.taking(second.adopt, lambda: 0, lambda: True):
                await second.until_taken(1)
                second.taken[0][0].close()
        assert first.taken == []
