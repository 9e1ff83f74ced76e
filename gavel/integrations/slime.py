"""slime: the reward of a prompt's samples, judged together (`--group-rm --custom-rm-path`).

    # judged.py, on the PYTHONPATH of slime's processes
    reward = gavel.integrations.slime.custom_rm("openai/gpt-5-mini", rubric="…")

    python train.py --group-rm --custom-rm-path judged.reward …

Written against `batched_async_rm` of THUDM/slime at commit 0b420f1, and `Sample.remove_sample` at a51f071, which masks
a sample out of the loss. slime makes a tensor of all rewards, so a masked sample has a number, too: the others' mean.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from pydantic_core import to_json

from gavel.integrations._rewards import (
    Judged,
    JudgeLike,
    Scorer,
    Unscored,
    groups_of,
    member,
    truth_metadata,
    with_mean,
)
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.scenarios.formats.row import is_list
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

Sample = Any
"""A `slime.utils.types.Sample`."""


def custom_rm(
    judge: JudgeLike | None = None, *, rubric: Rubric | str | None = None, unscored: Unscored = "group"
) -> Callable[..., Awaitable[list[float]]]:
    """The function for `--custom-rm-path` together with `--group-rm`.

    `judge`: a model, a judge or a service's address (see `Scorer`). A sample's `label` that is a text, or the
    `reference` in its metadata, is shown to the judge; `rubric` and `criteria` in the metadata replace the judge's own.
    `unscored`: "group" masks all samples of a prompt when one of them has no score, "member" that sample alone, "raise"
    ends the rollout. Samples that are all alike are masked, too, and so is each that was aborted; `metadata["judge"]`
    says why.
    """
    return partial(_score_samples, Scorer(judge, rubric, unscored))


__all__ = ["custom_rm"]


async def _score_samples(scorer: Scorer, /, args: Any, samples: Any, **_: Any) -> list[float]:
    if not is_list(samples) or any(map(is_list, samples)):
        raise JudgeError(
            "slime gave the reward one sample, or samples in lists, where it needs the samples of one prompt.",
            "Run it with --group-rm, and let --custom-generate-function-path return one sample for each.",
        )
    groups = _groups(samples)
    ended = [[sample for sample in group if sample.status.value != "aborted"] for group in groups]
    judged = await scorer.score_all([TrajectoryGroup(map(_member, group)) for group in ended if group])
    by_sample: dict[int, float | None] = {}
    for group, found in zip(filter(None, ended), judged, strict=True):
        _tell(group, found)
        by_sample |= zip(map(id, group), found.rewards, strict=True)
    rewards: dict[int, float] = {}
    for group in groups:
        scores = [by_sample.get(id(sample)) for sample in group]
        for sample, given, number in zip(group, scores, with_mean(scores), strict=True):
            sample.remove_sample = sample.remove_sample or given is None
            rewards[id(sample)] = number
    return [rewards[id(sample)] for sample in samples]


def _groups(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each prompt: slime numbers its groups itself."""
    numbers = [getattr(sample, "group_index", None) for sample in samples]
    keys = [to_json(s.prompt if number is None else number) for s, number in zip(samples, numbers, strict=True)]
    return [[samples[index] for index in group] for group in groups_of(keys)]


def _tell(samples: list[Sample], judged: Judged) -> None:
    for sample, scored in zip(samples, judged.group, strict=True):
        if scored.judgement:
            judgement = scored.judgement.model_dump(exclude={"votes"}, exclude_none=True)
            sample.metadata = {**(sample.metadata or {}), "judge": judgement}


def _member(sample: Sample) -> Trajectory:
    """Builds a member. A failed sample (a tool, a parser) is judged as it stands, like a truncated one."""
    cut = sample.status.value in ("truncated", "failed")
    truth = truth_metadata(sample.metadata or {}, sample.label if isinstance(sample.label, str) else None)
    return member(sample.prompt, sample.response, status="truncated" if cut else "finished", metadata=truth)
