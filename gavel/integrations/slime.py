"""slime: the reward of a prompt's samples, judged together (`--group-rm --custom-rm-path`).

    # judged.py, on the PYTHONPATH of slime's processes
    reward = gavel.integrations.slime.custom_rm("openai/gpt-5-mini", rubric="…")

    python train.py --group-rm --custom-rm-path judged.reward …

Written against `batched_async_rm` of THUDM/slime at commit 0b420f1, and `Sample.remove_sample` at a51f071, which masks
a sample out of the loss. slime makes a tensor of all rewards, so a masked sample has a number, too: the others' mean.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pydantic_core import to_json

from gavel.integrations._rewards import JudgeLike, Scorer, Unscored, groups_of, member, truth_metadata, with_mean
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
    indices = [getattr(sample, "group_index", None) for sample in samples]  # slime numbers its groups itself
    groups = groups_of(to_json(s.prompt if n is None else n) for s, n in zip(samples, indices, strict=True))
    ended = [own for group in groups if (own := [n for n in group if samples[n].status.value != "aborted"])]
    judged = await scorer.score_all([TrajectoryGroup(_member(samples[n]) for n in group) for group in ended])
    scored = {n: one for group, own in zip(ended, judged, strict=True) for n, one in zip(group, own, strict=True)}
    for n, one in scored.items():
        judgement = one.judgement.model_dump(exclude={"votes"}, exclude_none=True)
        samples[n].metadata = {**(samples[n].metadata or {}), "judge": judgement}
    rewards = [0.0] * len(samples)
    for group in groups:
        given = [scored[n].reward if n in scored else None for n in group]
        for n, reward, number in zip(group, given, with_mean(given), strict=True):
            samples[n].remove_sample = samples[n].remove_sample or reward is None
            rewards[n] = number
    return rewards


def _member(sample: Sample) -> Trajectory:
    """Builds a member. A failed sample (a tool, a parser) is judged as it stands, like a truncated one."""
    cut = sample.status.value in ("truncated", "failed")
    truth = truth_metadata(sample.metadata or {}, sample.label if isinstance(sample.label, str) else None)
    return member(sample.prompt, sample.response, status="truncated" if cut else "finished", metadata=truth)
