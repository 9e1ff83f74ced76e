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
import json
import math
import os
import subprocess
import sys
import tempfile
import time
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


def returned_rightly(trajectory: Trajectory) -> bool:
    """README's scenario: looked up first, refunded what was bought in the last 30 days alone, and said so."""
    number = next(each for each in ORDERS if each in Task.of(trajectory.metadata).user)
    said = trajectory.closing_text()
    told = "refund" in said if ORDERS[number]["days"] <= 30 else "30 days" in said
    return trajectory.status == "finished" and told and bool(acted_rightly(trajectory))


def acted_rightly(trajectory: Trajectory) -> float:
    """The same whatever it said."""
    number = next(each for each in ORDERS if each in Task.of(trajectory.metadata).user)
    made, refund = calls_of(trajectory), ("refund", {"order_id": number})
    refunds = [call for call in made if call[0] == "refund"]
    looked = made[:1] == [("look_up_order", {"order_id": number})]
    return looked and refunds == ([refund] if ORDERS[number]["days"] <= 30 else [])


returns.success = returned_rightly
returns.measures = {"acted_rightly": acted_rightly}


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
        for name in ("README", *LIBRARY):
            scenario: Scenario = returns if name == "README" else find_scenario(name)
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


def train(base_model: str, judge: str, seed: int, steps: int, extra: list[str]) -> dict[str, Any]:
    """One run: held-out success before and after, and minutes."""
    with tempfile.TemporaryDirectory() as directory:
        started, before = time.monotonic(), os.times()
        command = [sys.executable, "-m", "gavel", "train", f"{Path(__file__).resolve()}:returns", "--model", base_model]
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
    acted = [row["acted_rightly"] for row in curve]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    tasks = len(returns.tasks("held_out"))
    first, last = curve[0]["success"], curve[-1]["success"]
    error = math.sqrt((first * (1 - first) + last * (1 - last)) / tasks)
    return {
        "judge": judge,
        "seed": seed,
        "before": first,
        "after": last,
        "standard errors": (last - first) / error if error else 0.0,
        "acted": f"{acted[0]:.2f} → {acted[-1]:.2f}",
        "minutes": seconds / 60,
        "CPU minutes": cpu / 60,
        "curve": [round(row["success"], 2) for row in curve],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a directory, or any base model of Gavel")
    parser.add_argument("--zero-shot", action="store_true")
    parser.add_argument("--episodes", type=int, default=64, help="of a scenario, with --zero-shot")
    parser.add_argument("--show", type=int, default=0, help="episodes a scenario to print, with --zero-shot")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--control", type=int, default=1, help="seeds with the constant judge")
    parser.add_argument("--steps", type=int, default=40)
    given, extra = parser.parse_known_args()
    if given.zero_shot:
        asyncio.run(zero_shot(given.model, given.episodes, given.show))
        return
    for judge, seeds in (("stand-in", given.seeds), ("constant", given.control)):
        for seed in range(seeds):
            row = train(given.model, judge, seed, given.steps, extra)
            print(
                "  ".join(
                    f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
