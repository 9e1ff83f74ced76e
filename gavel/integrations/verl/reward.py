"""The judge as verl's `compute_score`, which sees one sample at a time: a judge service assembles the groups.

    # judge_reward.py; reward.custom_reward_function.path=judge_reward.py
    compute_score = gavel.integrations.verl.compute_score("http://127.0.0.1:8080", n=8)

Every sample is sent to its group at the service and is answered with its own score when all `n` are there. verl accepts
only numbers: an unscored sample ends the training, or gives its whole group equal rewards.
"""

import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Literal

from gavel.integrations._rewards import checked, group_size, member, submitted, truth_metadata
from gavel.judge.errors import JudgeError
from gavel.judge.service.client import JudgeClient, MemberScore, RefusalError
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory

EQUAL = 0.5
"""Reward of every member of an unscored group: equal rewards have no advantage within their group."""
_TAKEN = {"group-full", "group-closed"}
"""Rejections of a group that was judged before: the prompt has recurred, and its samples form the next group."""

VerlUnscored = Literal["raise", "group"]
ComputeScore = Callable[..., Awaitable[dict[str, Any]]]


def compute_score(
    service: JudgeClient | str | None = None,
    *,
    n: int,
    run: str = "verl",
    rubric: str | None = None,
    unscored: VerlUnscored = "raise",
    reference: bool = True,
    prompt: str = "raw_prompt",
    deadline: float = 600.0,
) -> ComputeScore:
    """An async `compute_score(data_source, solution_str, ground_truth, extra_info)` for `custom_reward_function`.

    `service`: address or client of a judge service; None = GAVEL_JUDGE_URL. `n`: `actor_rollout_ref.rollout.n`. `run`:
    name of the training run; samples of one prompt and ground truth in it are a group. `unscored`: where the judge
    could not score a sample, "raise" an error, or give its whole "group" equal rewards of 0.5; a group of equal samples
    always has these. `reference`: whether the judge is shown the ground truth. `prompt`: field of `extra_info` that
    holds the prompt. `deadline`: seconds from a group's first sample until those that came are judged; where a group
    that is not scored whole has equal rewards, an incomplete one is not judged.

    Beside `score` it returns `judge_unscored` (1 where the reward is no score) and the judge's score, standard error
    and explanation. `JudgeRewardManager` identifies groups by verl's own ids instead, and recognizes validation.
    """
    judge = VerlJudge(service, rubric=rubric, unscored=unscored, reference=reference, deadline=deadline)
    return partial(_compute_score, judge, group_size("n", n), run, prompt)


async def _compute_score(
    judge: "VerlJudge",
    size: int,
    run: str,
    prompt: str,
    /,
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> dict[str, Any]:
    info = extra_info or {}
    asked = info.get(prompt)
    if asked is None:
        raise JudgeError(
            f"extra_info has no {prompt!r}, so the judge does not know what the policy was asked.",
            'Keep the prompt in a field of extra_info and name it: compute_score(…, prompt="question").',
        )
    attempt = judge.attempt(asked, solution_str, ground_truth, info)
    task = json.dumps([data_source, attempt.messages()[:-1], attempt.metadata], sort_keys=True, default=str)
    group = f"{run}-{hashlib.sha256(task.encode()).hexdigest()[:32]}"
    return await judge.score(attempt, group, size, rounds=True)


class VerlJudge:
    """Sends samples to their groups, and converts the answers to rewards."""

    def __init__(
        self,
        service: JudgeClient | str | None = None,
        *,
        rubric: str | None = None,
        unscored: VerlUnscored = "raise",
        reference: bool = True,
        deadline: float = 600.0,
    ) -> None:
        """Takes the options of `compute_score`. Raises `JudgeError` if no service is named."""
        self._unscored = checked(unscored, VerlUnscored)  # "member" is not offered: verl accepts numbers only
        if isinstance(service, JudgeClient):
            if rubric is not None:
                raise JudgeError(
                    "a JudgeClient has its own rubric.", "Give it as JudgeClient(…, options={'rubric': …})."
                )
            self._client = service
        else:
            options = None if rubric is None else {"rubric": rubric}
            self._client = JudgeClient(service, options=options, deadline=deadline + _JUDGING)
        self._reference = reference
        self._deadline = deadline

    def attempt(self, prompt: Any, answer: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Trajectory:
        """A sample with its task's truth: `rubric` and `criteria` of `extra_info`, and the ground truth."""
        row = {name: extra_info.get(name) for name in ("rubric", "criteria")}
        truth = truth_metadata({**row, "reference": ground_truth if self._reference else None})
        return member(prompt if isinstance(prompt, str) else list(prompt), answer, metadata=truth)

    async def score(self, attempt: Trajectory, group: str, expected: int, *, rounds: bool = False) -> dict[str, Any]:
        """The reward and the judge's explanation. `rounds`: a judged group is followed by another of the same name.

        Raises `JudgeError` for a sample without a score, unless its group then gets equal rewards.
        """
        answer = await submitted(self._answer(attempt, group, expected, rounds))
        judgement, score = answer.judgement, answer.judgement.score
        is_whole = answer.status == "scored" and score is not None
        is_alike = answer.status == "degenerate" and answer.arrived == expected
        if not is_whole and not is_alike and self._unscored == "raise":
            came = f"{answer.arrived} of {expected} samples came"
            raise JudgeError(
                f"a group was not scored whole ({came}): {judgement.reason or answer.status}.",
                f'GET /v1/judgements/{answer.record} has its members; go on without such groups: unscored="group".',
            )
        return {  # the same fields for every sample, as verl requires
            "score": score if is_whole else EQUAL,
            "judge_unscored": float(answer.status != "scored"),
            "judge_score": math.nan if score is None else score,
            "judge_standard_error": math.nan if judgement.standard_error is None else judgement.standard_error,
            "judge_explanation": judgement.explanation or judgement.reason or "",
        }

    async def _answer(self, attempt: Trajectory, group: str, expected: int, rounds: bool) -> MemberScore:
        """The member's score in the first group of this name that accepts it."""
        late = "judge" if self._unscored == "raise" else "unscored"  # equal rewards apply to all members or none
        for number in count(1):
            name = group if number == 1 else f"{group}-{number}"
            try:
                return await self._client.score_member(
                    attempt, name, expected=expected, deadline_seconds=self._deadline, on_deadline=late
                )
            except RefusalError as refusal:
                if rounds and refusal.kind in _TAKEN:
                    continue
                if refusal.kind == "group-closed" and self._unscored == "group":  # it came too late
                    return MemberScore(Judgement(reason=refusal.message), "unscored", record="", arrived=0)
                raise
        raise AssertionError("count() ended")


_JUDGING = 900.0
"""Max seconds to wait for the judgement of a closed group."""
