"""Environment steps a second: in process, over AgentGym's protocol, and by a plain client of it.

    python benchmarks/scenarios.py                          1 to 256 episodes at once
    python benchmarks/scenarios.py --json --concurrency 1 16 --rounds 2

The world is `text_adventure` (16 turns, the agent always looks around), so a step costs nearly nothing beside the way
to it. The server is one `gavel serve-env` process. Legs:

    process      gavel's rollout, the world in this process
    rollout      gavel's rollout over agentgym:URL: trajectories, limits and outcome included
    client       the same connections without a rollout: create, reset, steps
    requests     what AgentGym's own client does: requests.post for each step, each on a new connection, a thread an
                 episode

Each figure is the best of `--rounds`. A protocol more is a leg more: a function in LEGS.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import requests

from gavel.integrations.agentgym.client import EnvServer
from gavel.integrations.agentgym.protocol import OTHER
from gavel.integrations.agentgym.scenario import agentgym
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.text_adventure import scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario

TURNS = scenario.max_turns
LEAST = 32
"""Episodes of a figure, at least."""
Leg = Callable[[str, int, int], Awaitable[None]]
"""Plays episodes over the server at a URL, so many at once."""


async def _look(request: ChatRequest) -> Message:
    return {"content": "look"}


LOOKING = FunctionModel("looking", _look)


async def process(url: str, episodes: int, at_once: int) -> None:
    await _rollouts(scenario, episodes, at_once)


async def over_rollouts(url: str, episodes: int, at_once: int) -> None:
    await _rollouts(MIRRORED[url], episodes, at_once)


async def _rollouts(played: Scenario, episodes: int, at_once: int) -> None:
    turn = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with turn:
            done = await rollout(LOOKING, played, played.tasks()[number % 300], seed=number)
            assert done.metrics["turns"] == TURNS, done.status_reason

    await asyncio.gather(*map(one, range(episodes)))


async def client(url: str, episodes: int, at_once: int) -> None:
    turn = asyncio.Semaphore(at_once)
    server = EnvServer(url, OTHER, {})

    async def one(number: int) -> None:
        async with turn:
            session = await server.begin(number % 300)
            steps = [await server.step(session, "look") for _ in range(TURNS)]
            assert steps[-1].done
            await server.end(session, whole=True)

    await asyncio.gather(*map(one, range(episodes)))
    await asyncio.to_thread(server.close)


async def by_requests(url: str, episodes: int, at_once: int) -> None:
    def one(number: int) -> None:
        name = requests.post(f"{url}/create", json={}, timeout=300).json()["id"]
        requests.post(f"{url}/reset", json={"id": name, "data_idx": number % 300}, timeout=300)
        for _ in range(TURNS):
            step = requests.post(f"{url}/step", json={"id": name, "action": "look"}, timeout=300).json()
        assert step["done"]
        requests.post(f"{url}/close", json={"id": name}, timeout=300)

    def all_of_them() -> None:
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(one, range(episodes)))

    await asyncio.to_thread(all_of_them)


MIRRORED: dict[str, Scenario] = {}
LEGS: dict[str, Leg] = {"process": process, "rollout": over_rollouts, "client": client, "requests": by_requests}


@contextmanager
def served() -> Iterator[str]:
    """The address of the scenario, in a process of its own."""
    command = [sys.executable, "-m", "gavel", "serve-env", "text_adventure", "--port", "0", "--most", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            first = server.stdout.readline()
            yield next(word for word in first.split() if word.startswith("http://"))
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object for each figure")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--legs", nargs="+", choices=LEGS, default=list(LEGS))
    given = parser.parse_args()
    with served() as url:
        MIRRORED[url] = agentgym(url)
        if not given.json:
            print("at once  " + "  ".join(f"{leg:>10}" for leg in given.legs) + "   steps a second")
        for at_once in given.concurrency:
            episodes = max(LEAST, at_once)
            found: dict[str, float] = {}
            for leg in given.legs:
                seconds = min(_seconds(LEGS[leg], url, episodes, at_once) for _ in range(given.rounds))
                found[leg] = episodes * TURNS / seconds
                if given.json:
                    figure = {"leg": leg, "at_once": at_once, "steps_per_second": round(found[leg], 1)}
                    print(json.dumps(figure), flush=True)
            if not given.json:
                print(f"{at_once:>7}  " + "  ".join(f"{found[leg]:>10,.0f}" for leg in given.legs), flush=True)


def _seconds(leg: Leg, url: str, episodes: int, at_once: int) -> float:
    began = time.perf_counter()
    asyncio.run(leg(url, episodes, at_once))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
