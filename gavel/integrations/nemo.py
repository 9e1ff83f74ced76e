"""NeMo RL: an environment whose step judges the samples of a prompt against each other.

    @ray.remote
    class JudgeEnvironment(EnvironmentInterface):
        def __init__(self, config):
            self._judged = gavel.integrations.nemo.step(config["judge"], group_size=config["group_size"])

        def step(self, message_log_batch, metadata):
            return EnvironmentReturn(*self._judged(message_log_batch, metadata))

Written against `EnvironmentInterface.step` of NVIDIA-NeMo/RL at commit 0b8a793, which `calculate_rewards` calls with
all samples of a task's batch. An environment cannot mask a sample there: one without a score gets the number at which
its advantage is zero. With NeMo Gym's rollouts, use the service's route `/verify`, whose answers mask it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic_core import to_json

from gavel.integrations import _rewards
from gavel.integrations._rewards import JudgeLike, Scorer, Unscored, by_member, groups_of, member, truth_metadata
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

MessageLog = Sequence[Message]
Step = tuple[list[Message], list[Any], list[None], Any, Any, list[str | None]]
"""The fields of an `EnvironmentReturn`: observations, metadata, next stop strings, rewards, terminateds, answers."""


def step(
    judge: JudgeLike | None = None,
    *,
    group_size: int,
    rubric: Rubric | str | None = None,
    unscored: Unscored = "group",
) -> Callable[[Sequence[MessageLog], Sequence[Any]], Step]:
    """The result of `EnvironmentInterface.step(message_log_batch, metadata)`: every episode ends with its score.

    `judge`: a model, a judge or a service's address (see `Scorer`). `group_size` is `num_generations_per_prompt`. A
    sample's metadata may hold a `rubric`, a `reference`, `answer` or `ground_truth`, and `criteria`. `unscored`:
    "group" gives all samples of a prompt 0.0 when one of them has no score, "member" gives that sample the mean of the
    others, "raise" ends the run. Samples that are all alike get 0.0, too.

    The hook raises `JudgeError` when the batch holds less than a whole group, as NeMo RL's asynchronous rollouts do.
    """
    size = _rewards.group_size("group_size", group_size)
    return partial(_step, Scorer(judge, rubric, unscored), size)


__all__ = ["step"]


def _step(scorer: Scorer, size: int, message_log_batch: Sequence[MessageLog], metadata: Sequence[Any]) -> Step:
    import torch

    members = [_member(log, of_task) for log, of_task in zip(message_log_batch, metadata, strict=True)]
    keys = (to_json([_prompt(log), one.metadata]) for log, one in zip(message_log_batch, members, strict=True))
    groups = groups_of(keys, size)  # of a prompt that occurs twice in the batch two
    if wrong := [len(group) for group in groups if len(group) != size]:
        raise JudgeError(
            f"the batch has {wrong[0]} samples of a prompt, which are no whole groups of {size}.",
            "Give group_size = num_generations_per_prompt, and roll out synchronously, or use NeMo Gym's /verify.",
        )
    asked = [TrajectoryGroup(members[index] for index in group) for group in groups]
    rewards = [one.number for one in by_member(groups, scorer.score_all_now(asked))]
    observations: list[Message] = [{"role": "environment", "content": f"Environment: {one}"} for one in rewards]
    answers = [log[-1]["content"] if log else None for log in message_log_batch]
    ended = torch.ones(len(rewards), dtype=torch.bool)
    return observations, list(metadata), [None] * len(rewards), torch.tensor(rewards), ended, answers


def _prompt(log: MessageLog) -> list[Message]:
    acted = next((number for number, message in enumerate(log) if message["role"] == "assistant"), len(log))
    return [{"role": message["role"], "content": message["content"]} for message in log[:acted]]


def _member(log: MessageLog, metadata: Any) -> Trajectory:
    columns: dict[str, Any] = dict(metadata) if isinstance(metadata, Mapping) else {}  # pyright: ignore
    roles = {"environment": "user"}
    said = [{"role": roles.get(each["role"], each["role"]), "content": each["content"]} for each in log]
    return member(said, [], metadata=truth_metadata(columns, columns.get("ground_truth")))
