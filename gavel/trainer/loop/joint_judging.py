"""All models' attempts at one task, judged as one group that does not say whose they are.

The orders of the judge balance who is shown first. Each judged group is kept in a file as soon as it is scored; one of
the same attempts is not judged again.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gavel.base.errors import first_error
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup, unscored
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.loop.model_samples import Sample

_ATTEMPTS = "attempts"


def joint_groups(episodes: Mapping[str, Mapping[Sample, TrajectoryGroup]]) -> list[TrajectoryGroup]:
    """A group for each task (and agent, where an episode has several) of the attempts of all models, by model name."""
    groups: dict[tuple[str, str | None], TrajectoryGroup] = {}
    for model, samples in episodes.items():
        for (task, number), episode in samples.items():
            for member in episode:
                metadata = {**member.metadata, "model": model, "sample": number}
                bare = member.model_copy(update={"reward": None, "judgement": None, "metadata": metadata})
                group = groups.setdefault((task, member.agent), TrajectoryGroup(metadata={"task": task}))
                group.trajectories.append(bare)
    for group in groups.values():
        group.metadata[_ATTEMPTS] = _digest(group)
    return list(groups.values())


def judged_file(judge: Judge, folder: Path) -> Path:
    """Where the groups that this judge scored are kept: another judge, rubric or setting has a file of its own."""
    settings = json.dumps(judge.settings, sort_keys=True, default=str)
    return folder / "judged" / f"{hashlib.sha256(settings.encode()).hexdigest()[:12]}.jsonl.zst"


def judged_before(groups: Sequence[TrajectoryGroup], file: Path) -> dict[str, TrajectoryGroup]:
    """The groups that the file has judged, by the digest of their attempts."""
    if not file.is_file():
        return {}
    wanted = {str(group.metadata[_ATTEMPTS]) for group in groups}
    known = {str(group.metadata.get(_ATTEMPTS)): group for group in TrajectoryStore(file).read()}
    return {digest: group for digest, group in known.items() if digest in wanted}


async def judge_together(
    judge: Judge, groups: Sequence[TrajectoryGroup], file: Path, done: Callable[[], None]
) -> list[TrajectoryGroup]:
    """The groups with their judgements; `done` hears of each that is judged now.

    A group that the judge could not score, or was not asked about because it stopped, is unscored with the reason, and
    not kept: the same command asks again. Raises `JudgeError` for a judge that cannot be asked.
    """
    known = judged_before(groups, file)
    store = TrajectoryStore(file)

    async def score(group: TrajectoryGroup) -> None:
        digest = str(group.metadata[_ATTEMPTS])
        try:
            judged = await judge.score(group)
        except JudgeError as error:
            if judge.stopped is None:
                raise
            known[digest] = unscored(group, error.message)
            return
        whole = judged.judgement  # identical attempts are tied, and no judge is asked about them
        tied = whole is not None and whole.status == "degenerate" and len(judged) > 1 and not whole.lost_orders
        if tied or any(member.judgement and member.judgement.score is not None for member in judged):
            store.append(judged)  # without an await: a stop between the two would lose what was paid for
        known[digest] = judged
        done()

    with first_error():
        async with asyncio.TaskGroup() as running:
            for group in groups:
                if str(group.metadata[_ATTEMPTS]) not in known:
                    running.create_task(score(group))
    return [known[str(group.metadata[_ATTEMPTS])] for group in groups]


def _digest(group: TrajectoryGroup) -> str:
    """A hash of what the judge reads and whose it is."""
    shown = [
        [
            member.metadata.get("model"),
            member.metadata.get("sample"),
            [each.model_dump(mode="json", include={"agent", "tools"}) for each in member.histories()],
            [each.messages() for each in member.histories()],
            member.status,
            member.metadata.get("task"),
        ]
        for member in group
    ]
    return hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()[:20]
