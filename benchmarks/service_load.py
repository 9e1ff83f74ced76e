"""The judge service under load, beside a bare FastAPI route that makes the same LiteLLM calls.

    python benchmarks/service_load.py --json
    python benchmarks/service_load.py --legs sqlite open --groups 500

    sqlite       saturated by 64 clients in turns with the bare route: groups a second, CPU milliseconds a group; then
                 both at half of the bare route's capacity, at even intervals: latency in milliseconds
    processes    the same with two processes on one port (`gavel serve --processes 2`) over one SQLite file
    postgresql   the same with two services over one PostgreSQL, where the server's package is installed
    rendezvous   64 groups whose 512 members come each for itself, in random order
    open         5,000 groups that wait for members, without and with an open connection each: memory
    kill         20 times SIGKILL at a random moment, while 2,000 groups come, whole and by their members

All judging is by a stub on loopback that takes 200 ms, and every score is compared with what the stub gives. CPU time
is that of the server's processes alone. A leg that finds a group lost, doubled or otherwise scored ends with an error.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[1]))  # the PostgreSQL server is among the tests

from service_servers import Server, bare, body, group, service, stub, worths

_JSON = {"Content-Type": "application/json"}
_MEMBERS = 8
Figures = dict[str, Any]


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(600))


def expected(number: int) -> list[float]:
    return [worth / 100 for worth in worths(number, _MEMBERS)]


async def post(session: aiohttp.ClientSession, server: Server, number: int) -> str:
    """The id of the judgement of a group, which must have the scores that the stub gives."""
    url = f"{server.urls[number % len(server.urls)]}/v1/score"
    async with session.post(url, data=body(number, _MEMBERS), headers=_JSON) as answer:
        found = await answer.json()
        if answer.status != 200 or found["scores"] != expected(number):
            raise SystemExit(f"{server.name}, group {number}: {answer.status} {found}")
        return found["id"]


async def saturate(session: aiohttp.ClientSession, server: Server, numbers: range, clients: int) -> list[str]:
    """All groups by so many clients, each with one request at a time."""
    ids: list[str] = []
    left = iter(numbers)

    async def ask() -> None:
        for number in left:
            ids.append(await post(session, server, number))

    began, cpu = time.perf_counter(), server.cpu
    await asyncio.gather(*(ask() for _ in range(clients)))
    seconds = time.perf_counter() - began
    server.saturated.append((len(numbers) / seconds, (server.cpu - cpu) / len(numbers) * 1000))
    return ids


async def pace(session: aiohttp.ClientSession, server: Server, numbers: range, rate: float) -> list[str]:
    """All groups at an even rate, whatever the answers take."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(number: int) -> str:
        due = began + (number - numbers[0]) / rate
        await asyncio.sleep(max(due - loop.time(), 0))
        judgement = await post(session, server, number)
        server.latencies.append((loop.time() - due) * 1000)
        return judgement

    ids = list(await asyncio.gather(*(one(number) for number in numbers)))
    server.rates.append(len(numbers) / (loop.time() - began))
    return ids


async def beside_bare(servers: list[Server], groups: int, clients: int, rounds: int) -> Figures:
    """Both legs of throughput, in turns."""
    ids: list[str] = []
    number = 0

    async def run(count: int, leg: Callable[[Server, range], Awaitable[list[str]]]) -> None:
        nonlocal number
        numbers = range(number, number + count)
        number += count
        for server in servers:
            found = await leg(server, numbers)
            ids.extend(found if server.name == "service" else [])

    async with client() as session:
        await run(3 * clients // 2, lambda server, numbers: saturate(session, server, numbers, clients))  # warm
        for server in servers:
            server.saturated.clear()
        for _ in range(rounds):
            await run(groups // rounds, lambda server, numbers: saturate(session, server, numbers, clients))
        half = statistics.mean(rate for rate, _ in servers[-1].saturated) / 2
        for _ in range(rounds):
            await run(groups // rounds, lambda server, numbers: pace(session, server, numbers, half))
        await check_stored(session, servers[0], ids)
    figures: Figures = {server.name: told(server) for server in servers}
    own, other = figures["service"], figures["bare"]
    names = ("groups_per_second", "p50_ms", "p99_ms", "cpu_ms_per_group")
    ratios = {f"{name}_ratio": round(own[name] / other[name], 2) for name in names}
    return {**figures, **ratios, "half": round(half, 1), "answered": len(ids)}


async def check_stored(session: aiohttp.ClientSession, server: Server, ids: list[str]) -> None:
    """None lost, none doubled: what was answered is what is on file."""
    stored, before = list[str](), ""
    while True:
        async with session.get(f"{server.urls[0]}/v1/judgements?limit=200{before}") as answer:
            page = await answer.json()
        stored += [one["id"] for one in page["judgements"] if one["status"] == "scored"]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    if sorted(ids) != sorted(stored):
        raise SystemExit(f"{len(ids)} answers, {len(set(ids))} of them different, {len(stored)} on file")


def told(server: Server) -> dict[str, float]:
    quantiles = statistics.quantiles(server.latencies, n=100)
    return {
        "groups_per_second": round(statistics.median(rate for rate, _ in server.saturated), 1),
        "cpu_ms_per_group": round(statistics.median(cpu for _, cpu in server.saturated), 2),
        "groups_per_second_at_half": round(statistics.mean(server.rates), 1),
        "p50_ms": round(quantiles[49], 1),
        "p99_ms": round(quantiles[98], 1),
        "peak_mib": round(server.peak, 1),
    }


async def send_member(session: aiohttp.ClientSession, url: str, name: str, member: Figures, **options: Any) -> Figures:
    content = json.dumps({"expected": _MEMBERS, **member, **options}).encode()
    async with session.post(f"{url}/v1/groups/{name}/members", data=content, headers=_JSON) as answer:
        found = await answer.json()
        if answer.status not in (200, 202):
            raise SystemExit(f"{name}, {member['id']}: {answer.status} {found}")
        return found


async def rendezvous(server: Server, groups: int) -> Figures:
    """Members one by one: each gets the score that the same group has when it comes at once."""
    members = [(number, member) for number in range(groups) for member in group(number, _MEMBERS)]
    random.Random(1).shuffle(members)
    async with client() as session:
        await asyncio.gather(*(post(session, server, number) for number in range(groups, 2 * groups)))  # warm
        began, cpu = time.perf_counter(), server.cpu
        answers = await asyncio.gather(
            *(send_member(session, server.urls[0], f"g{number}", member) for number, member in members)
        )
        seconds, cpu = time.perf_counter() - began, server.cpu - cpu
        judgements = {number: answer["judgement"] for (number, _), answer in zip(members, answers, strict=True)}
        at_once = await asyncio.gather(*(post(session, server, number) for number in range(groups)))
    if len(set(at_once) | set(judgements.values())) != 2 * groups:
        raise SystemExit("a group of members has more than one judgement")
    for (number, member), answer in zip(members, answers, strict=True):
        if answer["score"] != expected(number)[int(member["id"][1:])]:
            raise SystemExit(f"group {number}, {member['id']}: {answer}")
    return {
        "members": len(members),
        "seconds": round(seconds, 2),
        "cpu_ms_per_member": round(cpu / len(members) * 1000, 2),
        "peak_mib": round(server.peak, 1),
    }


async def open_groups(server: Server, groups: int) -> Figures:
    """Memory with so many open groups: one member each in the database, then one more that waits on a connection."""
    figures = {"idle_mib": round(server.memory, 1)}
    url = server.urls[0]
    one, other = group(0, _MEMBERS)[:2]
    limit = asyncio.Semaphore(64)
    async with client() as session:

        async def leave(number: int) -> None:
            async with limit:
                await send_member(session, url, f"g{number}", one, wait=False)

        cpu = server.cpu
        await asyncio.gather(*(leave(number) for number in range(groups)))
        figures["cpu_ms_per_member"] = round((server.cpu - cpu) / groups * 1000, 2)
        figures["open_mib"] = round(server.memory, 1)
        waiting = list[asyncio.Task[Figures]]()
        for number in range(groups):
            waiting.append(asyncio.create_task(send_member(session, url, f"g{number}", other)))
            if number % 50 == 49:
                await asyncio.sleep(0.3)  # connections come in no burst that a listener would refuse
        async with asyncio.timeout(300):
            while f"gavel_waiting_requests {float(groups)}" not in await _metrics(session, url):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        figures["waiting_mib"] = round(server.memory, 1)
        figures["kib_per_connection"] = round((figures["waiting_mib"] - figures["open_mib"]) / groups * 1024, 1)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    return {"groups": groups, **figures}


async def _metrics(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/metrics") as answer:
        return await answer.text()


async def killed(
    judge: str,
    starts: Callable[[], AbstractContextManager[Server]],
    kills: int,
    groups: int,
    clients: int,
    concurrency: int,
) -> Figures:
    """Clients with retries, half of whose groups come by their members, while the service is killed and started."""
    chance = random.Random(7)
    place = {"url": ""}
    judgements: dict[int, set[str]] = {}
    numbers = iter(range(groups))

    async with client() as session:

        async def retried(ask: Callable[[], Awaitable[Figures]]) -> Figures:
            while True:
                try:
                    return await ask()
                except (aiohttp.ClientError, ConnectionError):
                    await asyncio.sleep(0.05)

        async def whole(number: int) -> None:
            async def ask() -> Figures:
                headers = {**_JSON, "Idempotency-Key": f"group {number}"}
                async with session.post(
                    f"{place['url']}/v1/score", data=body(number, _MEMBERS), headers=headers
                ) as answer:
                    found = await answer.json()
                    if answer.status != 200 or found["scores"] != expected(number):
                        raise SystemExit(f"group {number}: {answer.status} {found}")
                    return found

            judgements[number] = {(await retried(ask))["id"]}

        async def by_members(number: int) -> None:
            async def ask(member: Figures) -> Figures:
                return await retried(lambda: send_member(session, place["url"], f"g{number}", member))

            answers = await asyncio.gather(*map(ask, group(number, _MEMBERS)))
            if [answer["score"] for answer in answers] != expected(number):
                raise SystemExit(f"group {number}: {answers}")
            judgements[number] = {answer["judgement"] for answer in answers}

        async def ask_on() -> None:
            for number in numbers:
                await (by_members if number % 2 else whole)(number)

        asking = [asyncio.create_task(ask_on()) for _ in range(clients)]
        for answered in sorted(chance.sample(range(groups), kills)):
            with starts() as server:
                place["url"] = server.urls[0]
                async with asyncio.timeout(300):
                    while len(judgements) < answered:  # noqa: ASYNC110 - of all clients
                        await asyncio.sleep(0.01)
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                server.processes[0].kill()
                server.processes[0].wait()
        with starts() as server:
            place["url"] = server.urls[0]
            async with asyncio.timeout(300):
                await asyncio.gather(*asking)
            await check_stored(session, server, [next(iter(ids)) for ids in judgements.values()])
        async with session.get(f"{judge}/asked") as answer:
            asked = await answer.json()
    if any(len(ids) > 1 for ids in judgements.values()) or asked["questions"] != 2 * len(judgements):
        raise SystemExit(f"{len(judgements)} groups, {asked}")
    repeated = asked["requests"] - asked["questions"]
    if repeated > kills * concurrency:
        raise SystemExit(f"{repeated} questions were asked again: more than were in flight")
    return {"kills": kills, "groups": len(judgements), "requests": asked["requests"], "asked_again": repeated}


def run(leg: str, options: argparse.Namespace, folder: Path) -> Figures:
    """The figures of one leg."""
    with stub(options.seconds) as judge:
        serving = partial(service, folder, judge, concurrency=4 * options.clients, groups=2 * options.clients)
        match leg:
            case "sqlite" | "processes" | "postgresql":
                with (
                    _database(leg) as (url, services),
                    bare(judge) as other,
                    serving(database=url, services=services, processes=2 if leg == "processes" else 1) as served,
                ):
                    servers = [served, other]
                    return asyncio.run(beside_bare(servers, options.groups, options.clients, options.rounds))
            case "rendezvous":
                with serving() as served:
                    return asyncio.run(rendezvous(served, 64))
            case "open":
                with serving() as served:
                    return asyncio.run(open_groups(served, options.open))
            case _:
                # A group that ends process after process is given up; here it is not the group that ends them.
                starts = partial(serving, concurrency=16, groups=32, limits={"leases": 10 * options.kills})
                return asyncio.run(killed(judge, starts, options.kills, options.groups, 24, 16))


@contextmanager
def _database(leg: str) -> Iterator[tuple[str | None, int]]:
    """The database's URL (None = a file), and the services over it."""
    if leg != "postgresql":
        yield None, 1
        return
    from tests.judge.service.postgresql import Cluster, binaries

    programs = binaries()
    assert programs is not None
    cluster = Cluster(programs, fsync=True)
    try:
        yield cluster.database(), 2
    finally:
        cluster.remove()


def _has_postgresql() -> bool:
    return any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


def main() -> None:
    legs = ("sqlite", "processes", "postgresql", "rendezvous", "open", "kill")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--legs", nargs="+", choices=legs, default=legs)
    parser.add_argument(
        "--groups", type=int, default=2000, help="of each measurement beside the bare route, and killed at"
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.2, help="that the stub judge takes")
    parser.add_argument("--rounds", type=int, default=6, help="in which service and bare route take turns")
    parser.add_argument("--open", type=int, default=5000, help="groups that wait for members")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: Figures = {}
    for leg in options.legs:
        if leg == "postgresql" and not _has_postgresql():
            figures[leg] = "no server's package on this machine"
            continue
        with tempfile.TemporaryDirectory() as folder:
            load, began = os.getloadavg()[0], time.monotonic()
            found = run(leg, options, Path(folder))
            figures[leg] = {**found, "load_before": round(load, 1), "leg_seconds": round(time.monotonic() - began)}
    figures["settings"] = {name: value for name, value in vars(options).items() if name not in ("json", "legs")}
    figures["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    figures["sender_cpu_seconds"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_utime, 1)
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
