"""200 groups of two at 64 calls at a time, against a server that fails 40 % of its requests as vendors' servers do.

    python benchmarks/judge_faults.py          about two minutes

Prints the votes and lost orders, wrong numbers (none may be), and the time beside what it must take: the longest chain
of pauses of one order (`Retry-After` and backoff), or the same work without pauses, whichever is longer. Bar: 1.2.
"""

import asyncio
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm import call as call_module
from tests.endpoint import Endpoint
from tests.judge.groups import saying
from tests.judge.test_vendors import GOOD, Vendor

GROUPS, CONCURRENCY, SHARE, BAR = 200, 64, 0.4, 1.2


async def judged(endpoint: Endpoint, *, pauses: bool) -> tuple[float, float, list[Any]]:
    """Seconds that it took, seconds of the longest chain of pauses, and the judged groups."""
    slept: defaultdict[object, float] = defaultdict(float)
    sleep = call_module.Call.sleep

    async def counted(self: call_module.Call, seconds: float) -> None:
        slept[asyncio.current_task()] += seconds if pauses else 0.0
        await sleep(self, seconds if pauses else 0.0)

    call_module.Call.sleep = counted
    endpoint.script = [Vendor(SHARE, 3)]
    judge = Judge(Juror("openai/judge", params=endpoint.params), orders=2, concurrency=CONCURRENCY)
    started = time.monotonic()
    done = await asyncio.gather(*(judge.score(saying(f"a {n}", f"b {n}")) for n in range(GROUPS)))
    call_module.Call.sleep = sleep
    return time.monotonic() - started, max(slept.values(), default=0.0), done


async def main() -> None:
    endpoint = Endpoint()
    await Judge(Juror("openai/judge", params=endpoint.params)).score(saying("a", "b"))  # loads LiteLLM
    work, _, _ = await judged(endpoint, pauses=False)
    took, pauses, done = await judged(endpoint, pauses=True)
    endpoint.close()
    votes = [vote for group in done for member in group for vote in member.judgement.votes]
    wrong = sum(vote.score != GOOD[vote.position] for vote in votes)
    lost = sum(group.judgement.lost_orders for group in done)
    unscored = Counter(group.judgement.status for group in done)["unscored"]
    share = took / max(pauses, work)
    print(f"{len(votes) // 2} orders voted, {lost} lost with a reason, {wrong} wrong, {unscored} groups unscored")
    print(f"{took:.1f} s; longest pauses of one order {pauses:.1f} s, work without pauses {work:.1f} s: {share:.2f}")
    sys.exit(wrong > 0 or share > BAR)


if __name__ == "__main__":
    asyncio.run(main())
