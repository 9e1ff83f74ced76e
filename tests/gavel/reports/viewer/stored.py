"""A run directory with groups, as training leaves it, for the tests of the viewer."""

import json
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement, Vote
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore

RUN = "desk/clerk"


def sampled(
    text: str | None, *calls: tuple[str, str], logprobs: tuple[float, ...] = (-0.1, -2.0), **extra: Any
) -> Choice:
    tools = [
        {"id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": tools} if tools else {})}
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "tool_calls" if calls else "stop",
            "message": message,
            "token_logprobs": list(logprobs),
            "token_ids": list(range(len(logprobs))),
            **extra,
        }
    )


def member(
    said: str,
    score: float | None,
    *,
    task: str = "t1",
    success: bool | None = None,
    flags: tuple[str, ...] = (),
    **fields: Any,
) -> Trajectory:
    votes = [] if score is None else [Vote(score=score, position=0, order=0, model="gavel/stand-in", explanation="why")]
    judgement = Judgement(
        score=score,
        standard_error=0.05,
        explanation="because",
        votes=votes,
        flags=list(flags),
        reason=None if votes else "no reply",
    )
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
    directory = root / run
    directory.mkdir(parents=True)
    (directory / "model.json").write_text(json.dumps({"format_version": 1}))
    (directory / "experiment.json").write_text(json.dumps({"judge": ["gavel/stand-in"]}))
    rows = [
        {"step": 0, "split": "held_out", "success": 0.25, "trajectories": 16},
        {"step": 1, "split": "train", "reward": 0.5, "loss": -0.1, "left_out/no_signal": 2},
        {"step": 2, "split": "train", "reward": 0.75, "loss": -0.2},
        {"step": 2, "split": "held_out", "success": 0.5, "trajectories": 16},
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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
