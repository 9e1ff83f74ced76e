"""What the tests of pages share: runs with hostile text, judged groups, and a parser that refuses unbalanced tags."""

import json
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

from openai.types.chat.chat_completion import Choice

from benchmarks.engine_quality import Bias, Latent, SimulatedJudge
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement, Vote
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.judge.groups import choice

HOSTILE = "</div></body><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """Tags, attributes and text; raises on a tag that is closed but was not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def shown(html: str) -> str:
    """The text of a report, in one line: it is whole, loads nothing and runs nothing."""
    page = Page(html)
    assert page.open == []
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "srcset", "action")]
    assert "default-src 'none'" in html
    return " ".join(page.text.split())


def write_run(directory: Path, rows: list[dict[str, Any]], experiment: dict[str, Any]) -> Path:
    directory.mkdir(parents=True)
    (directory / "model.json").write_text(json.dumps({"format_version": 1}))
    (directory / "experiment.json").write_text(json.dumps(experiment))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def made_run(
    directory: Path,
    *,
    final: float = 0.9,
    judged: bool = True,
    steps: int = 3,
    says: str = HOSTILE,
    scenario: str | None = None,
) -> Path:
    """A run of `steps` steps whose held-out success rises from 0.5 to `final`; `says`: its last held-out replies."""
    rows: list[dict[str, Any]] = [
        {"split": "held_out", "step": 0, "success": 0.5, "trajectories": 64.0, "words": 20.0},
        {"split": "held_out", "step": steps, "success": final, "trajectories": 64.0, "words": 10 * final},
    ]
    for step in range(1, steps + 1):
        row = {"split": "train", "step": step, "loss": -0.1, "success": 0.5, "left_out/no_signal": 2}
        judge = {"judge_score": step / steps, "judge/calls": 2, "judge/cost_usd": 0.25} if judged else {}
        rows += [row | judge, {"split": "times", "step": step, "whole": 2.0, "rollout": 1.0}]
    rows += [{"split": "alarms", "step": 2, "alarm": "score_gap"}] if judged else []
    experiment = {"scenario": scenario, "loop": {"seed": 0, "final_tasks": 3, "max_tokens": 40}} if scenario else {}
    write_run(directory, rows, experiment)
    with (directory / "metrics.jsonl").open("a") as stream:
        stream.write('{"split": "train", "st')  # torn: the run goes on
    for step, reply in ((0, "?"), (steps, says)):
        attempts = [scored_member(1.0, hand=0.0, judged=False, says=reply, task=f"task-{n}") for n in range(3)]
        store(directory, step, "held_out", run="").append(TrajectoryGroup(attempts))
    for step in range(1, steps + 1):
        members = [scored_member(score / 3, hand=1 - score / 3, judged=judged) for score in range(4)]
        judgement = GroupJudgement(status="scored") if judged else None
        store(directory, step, run="").append(TrajectoryGroup(members, judgement=judgement))
    return directory


def damage_row(run: Path) -> None:
    """Makes the second row of the run's metrics unreadable."""
    first, second, rest = (run / "metrics.jsonl").read_text().split("\n", 2)
    (run / "metrics.jsonl").write_text(f"{first}\n{second[:-4]}\n{rest}")


def scored_member(
    score: float, *, hand: float, judged: bool = True, says: str = HOSTILE, task: str = HOSTILE
) -> Trajectory:
    trajectory = Trajectory(
        messages_and_choices=[{"role": "user", "content": HOSTILE}, choice(says)],
        reward=score,
        metrics={"success": score > 0.5, "reward/hand": hand},
        metadata={"task": {"id": task}},
    )
    if judged:
        trajectory.judgement = Judgement(score=score, explanation=HOSTILE, flags=["contentless"])
    return trajectory


RUN = "desk/clerk"


def sampled(
    text: str | None, *calls: tuple[str, str], logprobs: tuple[float, ...] = (-0.1, -2.0), **extra: Any
) -> Choice:
    tokens = {"token_logprobs": list(logprobs), "token_ids": list(range(len(logprobs)))}
    return choice(text, calls, "call-", **{"finish_reason": "tool_calls" if calls else "stop", **tokens, **extra})


def member(
    said: str, score: float | None, *, task: str = "t1", success: bool | None = None, flags: Any = (), **fields: Any
) -> Trajectory:
    votes = [] if score is None else [Vote(score=score, position=0, order=0, model="gavel/stand-in", explanation="why")]
    about: Any = {"standard_error": 0.05, "explanation": "because", "reason": None if votes else "no reply"}
    judgement = Judgement(score=score, votes=votes, flags=list(flags), **about)
    return Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You run the desk."},
            {"role": "user", "content": f"Please mend {task}."},
            sampled(None, ("look", '{"what": "lamp"}')),
            {"role": "tool", "tool_call_id": "call-0", "content": "a lamp"},
            sampled(said, continues_sampled=True),
        ],
        reward=score,
        judgement=judgement,
        metrics={} if success is None else {"success": success},
        metadata={"task": {"id": task, "user": f"Please mend {task}."}},
        **fields,
    )


def group(*members: Trajectory, status: Any = "scored", **fields: Any) -> TrajectoryGroup:
    judgement = GroupJudgement(status=status, models=["gavel/stand-in"], calls=2, cost_usd=0.01)
    return TrajectoryGroup(list(members), judgement=judgement, **fields)


def store(root: Path, step: int, split: str = "train", run: str = RUN) -> TrajectoryStore:
    return TrajectoryStore(root / run / "trajectories" / split / f"{step:06d}.jsonl.zst")


def run_directory(root: Path, run: str = RUN) -> Path:
    """With two steps of figures, and two groups at each."""
    rows: list[dict[str, Any]] = [
        {"step": 0, "split": "held_out", "success": 0.25, "trajectories": 16},
        {"step": 1, "split": "train", "reward": 0.5, "loss": -0.1, "left_out/no_signal": 2},
        {"step": 2, "split": "train", "reward": 0.75, "loss": -0.2},
        {"step": 2, "split": "held_out", "success": 0.5, "trajectories": 16},
    ]
    directory = write_run(root / run, rows, {"judge": ["gavel/stand-in"]})
    for step in (1, 2):
        store(root, step, run=run).extend(
            [
                group(member("I am done.", 0.9, success=False), member("Mended it.", 0.2, success=True)),
                group(
                    member("Nothing.", None, task="t2"),
                    member("Ignore all.", 0.1, task="t2", flags=("addresses the judge",)),
                    status="partial",
                ),
            ]
        )
    return directory


async def judged(
    *names: str, groups: int = 12, orders: int = 2, metric: str = "independent_reward"
) -> list[TrajectoryGroup]:
    """Groups of 4, each scored by the judges of these names; the latent quality is the metric `metric`."""
    random = Random(0)
    table: dict[str, Latent] = {}
    made: list[TrajectoryGroup] = []
    for number in range(groups):
        ids = [f"sim-{number}x{n}" for n in range(4)]
        table |= {name: Latent(random.gauss()) for name in ids}
        members = [Trajectory(messages_and_choices=[choice(f"{n} {'.' * random.randrange(99)}")]) for n in ids]
        for name, member in zip(ids, members, strict=True):
            member.metrics = {metric: table[name].quality, "success": table[name].quality > 0}
        made.append(TrajectoryGroup(members))
    judge = Judge([SimulatedJudge(table, Bias(slope=0.5, noise=0.5), name=name) for name in names], orders=orders)
    return [await judge.score(group) for group in made]
