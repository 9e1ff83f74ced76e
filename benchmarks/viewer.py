"""How fast `gavel view` shows 10,000 trajectories of 5,000 tokens: its first page, lists, searches and groups.

    python benchmarks/viewer.py [--trajectories 10000] [--tokens 5000]

Makes a run of that size (in a temporary directory, some 400 MB), lets the viewer index it, and asks each kind of page
as a browser would, several times, at random places. Beside them stands what there was before: one group found by
reading its file with `TrajectoryStore`. Exits with 1 when a page misses its bar.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from openai.types.chat.chat_completion import Choice

sys.path.insert(0, str(Path(__file__).parents[1]))

from gavel.reports.viewer.app import create_app
from gavel.reports.viewer.index import GroupFilter, Index
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement, Vote
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.runs.run_listing import read_runs
from tests.backend_server import serving

BARS = {"first page": 0.5, "group": 0.3}
"""Seconds."""
_MEMBERS, _GROUPS_A_STEP, _TURNS = 8, 25, 10
_WORDS = [
    f"{a}{b}{c}" for a in "brtkls" for b in "aeiou" for c in ("n", "m", "st", "ck", "rd", "ll", "t", "ver", "ing")
]


def main() -> int:
    options = argparse.ArgumentParser(description="How fast the viewer shows many long trajectories.")
    options.add_argument("--trajectories", type=int, default=10_000)
    options.add_argument("--tokens", type=int, default=5_000)
    options.add_argument("--repetitions", type=int, default=20)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "runs")
        files = make_run(root, asked.trajectories // _MEMBERS, asked.tokens)
        size = sum(file.stat().st_size for file in files) / 1e6
        index = Index(root, Path(directory, "index.sqlite"))
        began = time.perf_counter()
        index.update()
        print(f"indexed {asked.trajectories:,} trajectories ({size:.0f} MB) in {time.perf_counter() - began:.1f} s")
        print(f"the index has {Path(directory, 'index.sqlite').stat().st_size / 1e6:.0f} MB")
        began = time.perf_counter()
        index.update()
        print(f"a look without news: {1000 * (time.perf_counter() - began):.0f} ms")
        missed = False
        with serving(create_app(index, lambda: read_runs(root))) as url:
            for name, seconds in pages(url, index, files, asked.repetitions).items():
                median, worst = statistics.median(seconds), max(seconds)
                bar = BARS.get(name)
                missed = missed or (bar is not None and worst > bar)
                print(
                    f"{name:12} median {1000 * median:6.0f} ms, worst {1000 * worst:6.0f} ms"
                    + (f" (bar {1000 * bar:.0f})" if bar else "")
                )
    return int(missed)


def pages(url: str, index: Index, files: list[Path], repetitions: int) -> dict[str, list[float]]:
    dice = random.Random(0)
    entries = [entry for page in range(1, 6) for entry in index.groups(GroupFilter(page=page))[0]]
    with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:

        def get(address: str) -> Callable[[], object]:
            return lambda: client.get(address).raise_for_status()

        def group() -> str:
            entry = dice.choice(entries)
            return f"/group/{entry['path']}/{entry['number']}"

        def by_reading() -> None:
            file = dice.choice(files)
            wanted = dice.randrange(_GROUPS_A_STEP)
            next(found for at, found in enumerate(TrajectoryStore(file).read()) if at == wanted)

        asked: dict[str, Callable[[], Callable[[], object]]] = {
            "first page": lambda: get("/"),
            "list": lambda: get(f"/groups?page={dice.randrange(1, 20)}"),
            "filter": lambda: get("/groups?show=discordant&sort=discordant"),
            "search": lambda: get(f"/groups?q={dice.choice(_WORDS)}+{dice.choice(_WORDS)}"),
            "group": lambda: get(group()),
            "by reading": lambda: by_reading,
        }
        found: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(repetitions):
            for name, make in asked.items():
                work = make()
                began = time.perf_counter()
                work()
                found[name].append(time.perf_counter() - began)
    return found


def make_run(root: Path, groups: int, tokens: int) -> list[Path]:
    directory = root / "bench" / "long"
    directory.mkdir(parents=True)
    (directory / "model.json").write_text(json.dumps({"format_version": 1}))
    dice = random.Random(0)
    files: list[Path] = []
    for step, first in enumerate(range(0, groups, _GROUPS_A_STEP), 1):
        store = TrajectoryStore(directory / "trajectories" / "train" / f"{step:06d}.jsonl.zst")
        for number in range(first, min(first + _GROUPS_A_STEP, groups)):
            store.append(_group(dice, f"task {number % 200}", tokens))
        files.append(store.path)
    return files


def _group(dice: random.Random, task: str, tokens: int) -> TrajectoryGroup:
    return TrajectoryGroup(
        [_member(dice, task, tokens) for _ in range(_MEMBERS)],
        judgement=GroupJudgement(status="scored", models=["stub"]),
    )


def _member(dice: random.Random, task: str, tokens: int) -> Trajectory:
    """Half of the tokens are sampled, and half come from tools."""
    score = dice.random()
    length = tokens // _TURNS // 2
    items: list[object] = [{"role": "user", "content": f"Please do {task}."}]
    for turn in range(_TURNS):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
        items.append(
            Choice.model_validate(
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {"role": "assistant", "content": _text(dice, length), "tool_calls": [call]},
                    "token_ids": [dice.randrange(150_000) for _ in range(length)],
                    "token_logprobs": [-dice.expovariate(2) for _ in range(length)],
                }
            )
        )
        items.append({"role": "tool", "tool_call_id": f"c{turn}", "content": _text(dice, length)})
    vote = Vote(score=score, position=0, order=0, model="stub", explanation=_text(dice, 30))
    return Trajectory(
        messages_and_choices=items,  # pyright: ignore[reportArgumentType]
        reward=score,
        judgement=Judgement(score=score, votes=[vote], explanation=vote.explanation),
        metrics={"success": dice.random() < score},
        metadata={"task": {"id": task}},
    )


def _text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choices(_WORDS, k=words))


if __name__ == "__main__":
    sys.exit(main())
