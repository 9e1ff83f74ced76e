"""One group of very long trajectories: how long the judge blocks the event loop, and how much memory it takes.

    python benchmarks/judge_huge_group.py --members 64 --tokens 200000

The judge model answers at once, so all time is the engine's. A task of the event loop ticks every 10 ms; the longest
pause between two ticks is the longest time for which no other call could go on. Kinds of text: one long message of
prose, many turns with JSON results, and Chinese with invisible characters, which takes the slow paths of sanitizing.
Exits with 1 when a pause or the peak memory misses its bar. Peak memory is that of the process, group included.
"""

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Callable
from random import Random
from typing import Any

from gavel.judge.judge import Judge
from gavel.llm.providers import load_litellm
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import MessagesAndChoices, Trajectory

MAX_PAUSE_SECONDS = 0.5
MAX_PEAK_MIB = 1024
TICK_SECONDS = 0.01
CHARACTERS_PER_TOKEN = 4

_WORDS = [
    *("the", "order", "was", "sent", "on", "monday", "and", "the", "customer", "asks", "for", "a", "refund", "since"),
    *("score", "of", "the", "lamp", "is", "not", "what", "we", "said", "at", "every", "record", "judge", "in", "court"),
]
_CHARACTERS = "退货政策要求订单在三十天之内顾客已经等了很久我们查看了每一条记录"


def prose(random: Random, characters: int) -> str:
    paragraph = " ".join(random.choices(_WORDS, k=2000))
    text = f"{paragraph}.\n" * (characters // len(paragraph) + 1)
    return f"{random.random()} {text}"[:characters]


def one_message(random: Random, characters: int) -> list[Message]:
    return [{"role": "assistant", "content": prose(random, characters)}]


def many_turns(random: Random, characters: int) -> list[Message]:
    messages: list[Message] = []
    for number in range(characters // 4000):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": f'{{"n": {number}}}'}}
        result = json.dumps({"rows": [prose(random, 600) for _ in range(5)]})
        messages.append({"role": "assistant", "content": prose(random, 900), "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return messages


def chinese(random: Random, characters: int) -> list[Message]:
    line = "".join(random.choices(_CHARACTERS, k=200)) + "\u2066<think>\n"
    return [{"role": "assistant", "content": (line * (characters // 2 // len(line) + 1))[: characters // 2]}]


KINDS: dict[str, Callable[[Random, int], list[Message]]] = {
    "one message": one_message,
    "many turns": many_turns,
    "Chinese, marks": chinese,
}


def group_of(kind: str, members: int, tokens: int) -> TrajectoryGroup:
    random = Random(kind)

    def member(number: int) -> Trajectory:
        opening: MessagesAndChoices = [{"role": "user", "content": "Please look into order 7."}]
        body = KINDS[kind](random, tokens * CHARACTERS_PER_TOKEN)
        return Trajectory(messages_and_choices=[*opening, *body, {"role": "assistant", "content": f"Done: {number}"}])

    return TrajectoryGroup(member(number) for number in range(members))


def characters_of(group: TrajectoryGroup) -> int:
    return sum(len(str(message.get("content"))) for trajectory in group for message in trajectory.messages())


async def at_once(messages: list[Message], schema: dict[str, Any]) -> str:
    labels = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
    return json.dumps({"scores": [{"trajectory_id": x, "explanation": "", "score": 0.5} for x in labels]})


async def longest_pause(stop: asyncio.Event) -> float:
    """Seconds of the longest time between two ticks beyond the tick itself."""
    longest, last = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(TICK_SECONDS)
        now = time.monotonic()
        longest, last = max(longest, now - last - TICK_SECONDS), now
    return longest


async def idle_pause(seconds: float) -> float:
    """The longest pause of a loop that has nothing else to do: the machine's own."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    return await longest_pause(stop)


async def measure(kind: str, members: int, tokens: int) -> dict[str, Any]:
    group = group_of(kind, members, tokens)
    characters = characters_of(group)
    stop = asyncio.Event()
    ticking = asyncio.create_task(longest_pause(stop))
    await asyncio.sleep(0)
    started, cpu = time.monotonic(), time.process_time()
    judged = await Judge(at_once).score(group)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    stop.set()
    pause = await ticking
    assert judged.judgement
    assert judged.judgement.status == "scored", judged.judgement
    return {
        "texts": kind,
        "members": members,
        "characters": characters,
        "calls": judged.judgement.calls,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "longest_pause_seconds": round(pause, 3),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200_000, help="of a member, at 4 characters each")
    parser.add_argument("--kind", choices=list(KINDS), help="only this kind of text")
    given = parser.parse_args()
    _ = load_litellm().encoding
    print(f"longest pause of an idle loop: {asyncio.run(idle_pause(5)):.3f} s", flush=True)
    missed: list[str] = []
    for kind in [given.kind] if given.kind else KINDS:
        row = asyncio.run(measure(kind, given.members, given.tokens))
        print(json.dumps(row, ensure_ascii=False), flush=True)
        if row["longest_pause_seconds"] > MAX_PAUSE_SECONDS or row["peak_mib"] > MAX_PEAK_MIB:
            missed.append(kind)
    print(f"bars missed: {', '.join(missed)}" if missed else "Every bar is met.")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
