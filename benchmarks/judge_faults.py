"""200 groups of two at 64 calls at a time, against a server that fails 40 % of its requests as vendors' servers do.

    python benchmarks/judge_faults.py          about a minute

The server is a process of its own. Prints the votes and lost orders, wrong numbers (none may be), and the time beside
what it must take: the longest chain of pauses of one order (`Retry-After` and backoff), or the same work without
pauses, whichever is longer. Bar: 1.2. That leaves out that pauses begin only after requests, which take their turns on
one core: beside it stands what a client would take that loses no time at all, with the same pauses, as many requests in
a second as without pauses, and no knowledge of which order will have the longest ones.
"""

import asyncio
import heapq
import multiprocessing
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm import rate_limits as call_module
from tests.endpoint import Endpoint
from tests.judge.groups import saying
from tests.judge.test_faults import GOOD, Vendor

GROUPS, CONCURRENCY, SHARE, BAR = 200, 64, 0.4, 1.2
LAST = 3
"""Orders that were done last, of which it is told where their time went."""


@dataclass
class Order:
    """Where the time of one order went, in seconds."""

    began: float
    """When its first request was sent."""
    waits: list[float] = field(default_factory=lambda: [0.0])
    """The pause before each of its requests."""
    turns: float = 0.0
    """Until a running call made room, after its first request too."""
    ended: float = 0.0

    @property
    def pauses(self) -> float:
        return sum(self.waits)

    @property
    def requests(self) -> float:
        return self.ended - self.began - self.pauses - self.turns

    def __str__(self) -> str:
        return (
            f"sent first at {self.began:.1f} s, done at {self.ended:.1f} s: {self.pauses:.1f} s of pauses, "
            f"{self.requests:.1f} s of requests, {self.turns:.1f} s for its turn"
        )


def without_loss(orders: Sequence[Order], request: float) -> float:
    """Seconds of a client that sends requests of so many seconds one after the other: repeated ones first, and new ones
    in the order of the orders."""
    now = last = 0.0
    new, pausing = deque(range(len(orders))), list[tuple[float, int, int]]()
    while new or pausing:
        if pausing and (pausing[0][0] <= now or not new):
            ready, order, sent = heapq.heappop(pausing)
            now = max(now, ready)
        else:
            order, sent = new.popleft(), 0
        now += request
        last = max(last, now)
        if sent + 1 < len(orders[order].waits):
            heapq.heappush(pausing, (now + orders[order].waits[sent + 1], order, sent + 1))
    return last


def _serve(link: Connection) -> None:
    endpoint = Endpoint()
    endpoint.script = [Vendor(SHARE, 3)]
    link.send(endpoint.params)
    link.recv()
    endpoint.close()


@contextmanager
def server() -> Iterator[dict[str, Any]]:
    """LiteLLM's parameters for a server that fails some requests, the same ones each time."""
    link, far_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(far_end,))
    process.start()
    try:
        yield link.recv()
    finally:
        link.send(None)
        process.join(10)
        process.kill()


async def judged(params: dict[str, Any], *, pauses: bool) -> tuple[float, list[Order], list[Any]]:
    """Seconds that it took, the orders, and the judged groups."""
    orders, pause = dict[Any, Order](), dict[Any, float]()
    sleep, acquire, started = call_module.Call.sleep, call_module.Call.acquire, time.monotonic()

    def now() -> float:
        return time.monotonic() - started

    def ended(task: Any) -> None:
        orders[task].ended = now()

    async def counted_sleep(self: call_module.Call, seconds: float, error: Exception) -> None:
        pause[asyncio.current_task()] = seconds if pauses else 0.0
        await sleep(self, seconds if pauses else 0.0, error)

    async def counted_acquire(self: call_module.Call) -> None:
        asked, task = now(), asyncio.current_task()
        await acquire(self)
        if task in orders:
            orders[task].turns += now() - asked
            orders[task].waits.append(pause.pop(task, 0.0))
        elif task is not None:
            orders[task] = Order(now())
            task.add_done_callback(ended)

    call_module.Call.sleep, call_module.Call.acquire = counted_sleep, counted_acquire
    judge = Judge(Juror("openai/judge", params=params), orders=2, concurrency=CONCURRENCY)
    done = await asyncio.gather(*(judge.score(saying(f"a {n}", f"b {n}")) for n in range(GROUPS)))
    took = now()
    await asyncio.sleep(0)
    call_module.Call.sleep, call_module.Call.acquire = sleep, acquire
    return took, list(orders.values()), done


async def main() -> None:
    endpoint = Endpoint()
    await Judge(Juror("openai/judge", params=endpoint.params)).score(saying("a", "b"))  # loads LiteLLM
    endpoint.close()
    with server() as params:
        work, unpaused, _ = await judged(params, pauses=False)
    with server() as params:
        used = time.process_time()
        took, orders, done = await judged(params, pauses=True)
        used = time.process_time() - used
    pauses = max(order.pauses for order in orders)
    ideal = without_loss(orders, work / sum(len(order.waits) for order in unpaused))
    votes = [vote for group in done for member in group for vote in member.judgement.votes]
    wrong = sum(vote.score != GOOD[vote.position] for vote in votes)
    lost = sum(group.judgement.lost_orders for group in done)
    unscored = Counter(group.judgement.status for group in done)["unscored"]
    share = took / max(pauses, work)
    print(f"{len(votes) // 2} orders voted, {lost} lost with a reason, {wrong} wrong, {unscored} groups unscored")
    print(f"{took:.1f} s; longest pauses of one order {pauses:.1f} s, work without pauses {work:.1f} s: {share:.2f}")
    print(f"a client without loss {max(ideal, work):.1f} s: {took / max(ideal, work):.2f}; {used:.1f} CPU s")
    for order in sorted(orders, key=lambda order: order.ended)[-LAST:]:
        print(order)
    sys.exit(wrong > 0 or share > BAR)


if __name__ == "__main__":
    asyncio.run(main())
