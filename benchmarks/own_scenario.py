"""Somebody's own scenario on a small base: what it can do before training, and what judged training brings.

    python benchmarks/own_scenario.py --zero-shot --model MODEL          turns that are a valid call or a proper end
    python benchmarks/own_scenario.py --seeds 5 --model MODEL            held-out success before and after, minutes

A turn is valid when it calls tools that exist with arguments that their schemas allow, or when it ends with words that
are no call, before its token limit. The scenarios are README's, of which no word was generated for the base's training,
and the library's that have tools. Each training run is a process (`gavel train --fresh`) in a temporary directory; its
judge is the stand-in, and the constant judge is the control.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jsonschema

import gavel
from examples.returns import ORDERS, returns
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

LIBRARY = ("returns_desk", "booking_desk", "retail_desk", "airline_desk", "email_search")
MAX_TOKENS = 64


def calls_of(trajectory: Trajectory) -> list[tuple[str, dict[str, Any]]]:
    """The calls, in order; arguments that cannot be read are none."""
    found: list[tuple[str, dict[str, Any]]] = []
    for message in trajectory.messages():
        for call in message.get("tool_calls") or ():
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                arguments = {}
            found.append((call["function"]["name"], arguments if isinstance(arguments, dict) else {}))
    return found


@dataclass(frozen=True, slots=True)
class Job:
    """A scenario of one look and one act, and the rule, unknown to the agent, by which it acts or refuses."""

    scenario: Scenario
    look: str
    act: str
    argument: str
    known: Mapping[str, Mapping[str, Any]]
    may: Callable[[Mapping[str, Any]], bool]

    def is_done(self, trajectory: Trajectory) -> bool:
        """Looked first, acted where the rule allows it and only there, and ended with a message."""
        words = re.findall(r"[\w-]+", Task.of(trajectory.metadata).user)
        asked = next(word for word in words if word in self.known)
        made, about = calls_of(trajectory), {self.argument: asked}
        acts = [call for call in made if call[0] == self.act]
        acted_rightly = acts == [(self.act, about)] * self.may(self.known[asked])
        ended = trajectory.status == "finished" and bool(trajectory.closing_text().strip())
        return made[:1] == [(self.look, about)] and acted_rightly and ended


KINDS = ("drill", "saw", "ladder", "pump", "sander")
PLACES = ("counter", "van", "depot")
DOCTORS = ("Ito", "Mertens", "Okafor", "Lund")
DRILLS = {f"T{number}": {"kind": KINDS[number % 5], "out": number % 7 in (1, 4, 6)} for number in range(100, 250)}


def find_tool(tool: str) -> dict[str, Any]:
    """Find a tool in the shed."""
    return DRILLS[tool]


def lend(tool: str) -> str:
    """Lend a tool."""
    return f"{DRILLS[tool]['kind']} lent"


PARCELS = {str(number): {"weight": number % 9 + 1, "place": PLACES[number % 3]} for number in range(3000, 3150)}


def track(parcel: str) -> dict[str, Any]:
    """Track a parcel."""
    return PARCELS[parcel]


def release(parcel: str) -> str:
    """Release a parcel to the customer."""
    return f"parcel {parcel} released"


VISITS = {f"V-{number}": {"doctor": DOCTORS[number % 4], "hours": number % 60} for number in range(20, 170)}


def read_visit(visit: str) -> dict[str, Any]:
    """Read a visit."""
    return VISITS[visit]


def cancel(visit: str) -> str:
    """Cancel a visit."""
    return f"visit {visit} cancelled"


def desk(
    name: str, system: str, asks: Sequence[str], known: Sequence[str], tools: Sequence[Any], rubric: str
) -> Scenario:
    tasks = [Task(user=asks[at % len(asks)].format(each)) for at, each in enumerate(known)]
    return Scenario(name=name, system=system, tools=list(tools), tasks=tasks, rubric=rubric, max_turns=4)


shed = desk(
    "shed",
    "You run a shed of tools for the neighbours.",
    ("May I borrow {}?", "I need {} for the weekend.", "{} please."),
    list(DRILLS),
    (find_tool, lend),
    """
- calls lend when out == false (weight 3).
- calls lend only after find_tool.
- calls find_tool and lend only with tool from the request.
- says "lent" when out == false.
- ends with a message.""",
)
counter = desk(
    "counter",
    "You run the counter where parcels are picked up.",
    ("I am here for parcel {}.", "My parcel is {}.", "Can I have {}?"),
    list(PARCELS),
    (track, release),
    """
- calls release when place == "counter" (weight 3).
- calls release only after track.
- calls track and release only with parcel from the request.
- says "released" when place == "counter".
- ends with a message.""",
)
clinic = desk(
    "clinic",
    "You answer the phone of a clinic.",
    ("I cannot come to {}.", "Please cancel {}.", "I want to call off visit {}."),
    list(VISITS),
    (read_visit, cancel),
    """
- calls cancel when hours >= 24 (weight 3).
- calls cancel only after read_visit.
- calls read_visit and cancel only with visit from the request.
- says "cancelled" when hours >= 24.
- ends with a message.""",
)
JOBS = (
    Job(returns, "look_up_order", "refund", "order_id", ORDERS, lambda it: it["days"] <= 30),
    Job(shed, "find_tool", "lend", "tool", DRILLS, lambda it: not it["out"]),
    Job(counter, "track", "release", "parcel", PARCELS, lambda it: it["place"] == "counter"),
    Job(clinic, "read_visit", "cancel", "visit", VISITS, lambda it: it["hours"] >= 24),
)
for job in JOBS:
    job.scenario.success = job.is_done


def turns_of(trajectory: Trajectory) -> list[str]:
    """What each turn of the agent is: call, end, invalid."""
    schemas = {each["function"]["name"]: each["function"].get("parameters") or {} for each in trajectory.tools or ()}
    kinds: list[str] = []
    for choice in trajectory.choices():
        calls, words = choice.message.tool_calls or [], choice.message.content or ""
        kind = "call" if calls else "end"
        if choice.finish_reason == "length" or "tool_call>" in words or not (calls or words.strip()):
            kind = "invalid"
        for call in calls:
            function: Any = getattr(call, "function", None)
            try:
                jsonschema.validate(json.loads(function.arguments), schemas[function.name])
            except (AttributeError, KeyError, ValueError, jsonschema.ValidationError):
                kind = "invalid"
        kinds.append(kind)
    return kinds


async def zero_shot(base_model: str, tasks: int, show: int) -> None:
    """Prints a row a scenario."""
    with tempfile.TemporaryDirectory() as directory:
        model = gavel.TrainableModel(name="zero", project="own", base_model=base_model)
        backend = gavel.LocalBackend(directory)
        await model.register(backend)
        own = {job.scenario.name: job.scenario for job in JOBS}
        for name in (*own, *LIBRARY):
            scenario = own.get(name) or find_scenario(name)
            drawn = scenario.sample("held_out", tasks, seed=0)
            played = await asyncio.gather(
                *(rollout(model, scenario, task, max_tokens=MAX_TOKENS, seed=at) for at, task in enumerate(drawn))
            )
            kinds = [kind for each in played for kind in turns_of(each)]
            shares = {kind: kinds.count(kind) / max(1, len(kinds)) for kind in ("call", "end", "invalid")}
            called = sum("call" in turns_of(each) for each in played) / len(played)
            solved = sum(bool(scenario.success and scenario.success(each)) for each in played) / len(played)
            row = {"valid": shares["call"] + shares["end"], **shares, "episodes with a call": called, "solved": solved}
            print(f"{name:14}", "  ".join(f"{key} {value:.2f}" for key, value in row.items()), f"of {len(kinds)} turns")
            for each in played[:show]:
                print(json.dumps([m.get("content") or m.get("tool_calls") for m in each.messages()][1:], default=str))
        await backend.close()


def train(scenario: Scenario, base_model: str, judge: str, seed: int, steps: int, extra: list[str]) -> dict[str, Any]:
    """One run: held-out success before and after, and minutes."""
    with tempfile.TemporaryDirectory() as directory:
        started, before = time.monotonic(), os.times()
        command = [sys.executable, "-m", "gavel", "train", f"{Path(__file__).resolve()}:{scenario.name}"]
        command += ["--model", base_model]
        command += ["--judge", judge, "--seed", str(seed), "--steps", str(steps), "--max-tokens", str(MAX_TOKENS)]
        command += ["--set", "loop.evaluate_every=10", "--name", "own", *extra]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        subprocess.run(
            command,
            check=True,
            cwd=directory,
            env=environment,
            stdout=None if os.environ.get("SHOW") else subprocess.DEVNULL,
        )
        seconds, after = time.monotonic() - started, os.times()
        file = next(Path(directory).rglob("metrics.jsonl"))
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    curve = [row for row in rows if row["split"] == "held_out"]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    tasks = len(scenario.tasks("held_out"))
    first, last = curve[0]["success"], curve[-1]["success"]
    shares = [(share * tasks + 1) / (tasks + 2) for share in (first, last)]  # an error also where all or none succeed
    error = math.sqrt(sum(share * (1 - share) / tasks for share in shares))
    return {
        "scenario": scenario.name,
        "judge": judge,
        "seed": seed,
        "before": first,
        "after": last,
        "standard errors": (last - first) / error,
        "minutes": seconds / 60,
        "CPU minutes": cpu / 60,
        "curve": [round(row["success"], 2) for row in curve],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [job.scenario.name for job in JOBS]
    parser.add_argument("--model", default="tool-caller", help="a directory, or any base model of Gavel")
    parser.add_argument("--scenarios", nargs="+", default=names, choices=names)
    parser.add_argument("--zero-shot", action="store_true")
    parser.add_argument("--episodes", type=int, default=64, help="of a scenario, with --zero-shot")
    parser.add_argument("--show", type=int, default=0, help="episodes a scenario to print, with --zero-shot")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--control", type=int, default=1, help="seeds with the constant judge")
    parser.add_argument("--steps", type=int, default=30)
    given, extra = parser.parse_known_args()
    if given.zero_shot:
        asyncio.run(zero_shot(given.model, given.episodes, given.show))
        return
    runs = itertools.product(given.scenarios, (("stand-in", given.seeds), ("constant", given.control)))
    for name, (judge, seeds) in runs:
        for seed in range(seeds):
            scenario = next(job.scenario for job in JOBS if job.scenario.name == name)
            row = train(scenario, given.model, judge, seed, given.steps, extra)
            print(
                "  ".join(
                    f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
