"""The judge as a reward function of TRL, and of Axolotl and Unsloth, which use TRL's GRPOTrainer.

    reward = gavel.integrations.trl.reward_func("openai/gpt-5-mini")
    GRPOTrainer(model, reward_funcs=reward, train_dataset=rows, args=GRPOConfig(…))

TRL hands over a whole batch, so members of one prompt are judged as a group, gathered from all processes first. A
completion without a score is None, never a number: TRL leaves it out.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gavel.integrations._rewards import (
    JudgeLike,
    Scored,
    Scorer,
    Side,
    Unscored,
    by_member,
    group_size,
    groups_of,
    member,
    messages_of,
    truth_metadata,
)
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import COLUMNS

T = TypeVar("T")


def reward_func(
    judge: JudgeLike | None = None,
    *,
    rubric: Rubric | str | None = None,
    unscored: Unscored = "group",
    reference_column: str | None = None,
    group_by: str | None = None,
    num_generations: int | None = None,
    tools: Sequence[Any] | None = None,
    name: str = "judge",
) -> "TrlReward":
    """A reward function: scores from 0 to 1, relative to the other completions of the prompt.

    `judge`: a `Judge`, a `JudgeClient`, a `JudgeConfig`, judge models, or a service's address; None = the environment's
    GAVEL_JUDGE_URL, else GAVEL_JUDGE_MODEL. `rubric`: for judge models and a service's address. `unscored`: where the
    judge could not score a completion, the whole "group" has no reward, so that another reward function beside this one
    does not count it as 0; or that "member" alone; or "raise" an error. `reference_column`: the dataset's column with
    the reference answer; by default `reference` or `answer`. Columns `rubric` and `criteria` are read too. `group_by`:
    a column that is equal within a group, if prompts are not (an environment's first observation); by default the
    prompt. `num_generations`: as in `GRPOConfig`; then a prompt that occurs twice in a batch is two groups. `tools`:
    functions or schemas of the policy, shown to the judge. `name`: what TRL calls the reward in its metrics.

    Raises `JudgeError` if no judge is named. The function raises it if the judge cannot be called (a wrong key, no
    budget, no service), which ends the training on all processes.
    """
    size = None if num_generations is None else group_size("num_generations", num_generations)
    return TrlReward(name, Scorer(judge, rubric, unscored), reference_column, group_by, size, tools)


__all__ = ["reward_func"]


@dataclass(eq=False)
class TrlReward:
    """A callable reward function of TRL. A `functools.partial` would be logged under another name."""

    name: str
    scorer: Scorer
    reference_column: str | None
    group_by: str | None
    size: int | None
    tools: Sequence[Any] | None

    def __post_init__(self) -> None:
        self.__name__ = self.name

    def __call__(
        self,
        prompts: Sequence[Side],
        completions: Sequence[Side],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """One reward per completion, in order; None = not scored. All processes of a run must call it."""

        trainer = getattr(log_metric, "__self__", None)

        def read() -> list[tuple[str, Trajectory]]:
            its = getattr(trainer, "num_generations", self.size)
            if self.size is not None and its != self.size:  # groups would be judged in parts
                raise JudgeError(
                    f"num_generations={self.size} was given, and the trainer makes {its} completions of each prompt.",
                    f"Give gavel.integrations.trl.reward_func(…, num_generations={its}), or leave it out.",
                )
            rows = enumerate(zip(prompts, completions, strict=True))
            return [self._read(number, *pair, columns) for number, pair in rows]

        scored = self._score_on_all_ranks(read, self.size and _size_now(trainer, self.size))
        if log_extra is not None:
            log_extra(f"{self.__name__}_explanation", list(map(_explanation, scored)))
        if log_metric is not None and scored:
            log_metric(f"{self.__name__}/unscored", sum(one.reward is None for one in scored) / len(scored))
            errors = [error for one in scored if (error := one.judgement.standard_error) is not None]
            if errors:
                log_metric(f"{self.__name__}/standard_error", sum(errors) / len(errors))
        return [one.reward for one in scored]

    def _read(self, number: int, prompt: Side, completion: Side, columns: dict[str, Any]) -> tuple[str, Trajectory]:
        """The key of a row's group, and its member with its task's truth."""
        row = {column: columns[column][number] for column in COLUMNS if column in columns}
        if self.reference_column is not None:
            row["reference"] = _cell(columns, self.reference_column, number)
        truth = truth_metadata(row)
        task = messages_of(prompt, "user") if self.group_by is None else _cell(columns, self.group_by, number)
        digest = hashlib.sha256(json.dumps([task, truth], sort_keys=True, default=repr).encode()).hexdigest()
        return digest, member(prompt, completion, tools=self.tools, metadata=truth)

    def _score_on_all_ranks(self, read: Callable[[], list[tuple[str, Trajectory]]], size: int | None) -> list[Scored]:
        """Scores the members that this rank reads, in order: groups may span several processes of a run.

        All members are gathered, each rank judges its share of the groups, and every rank receives the results of its
        own members. An error on one rank is raised on all, so that none waits forever. Without a process group of
        torch.distributed this process is the only rank.
        """
        rank, ranks = _rank()
        rows_by_rank = _gather(read, ranks)
        rows = [row for own in rows_by_rank for row in own]
        groups = groups_of((key for key, _ in rows), size)

        def judge() -> list[list[Scored]]:
            mine = [TrajectoryGroup(rows[index][1] for index in group) for group in groups[rank::ranks]]
            return self.scorer.score_all_now(mine)

        judged = _gather(judge, ranks)
        scored = by_member(groups, [judged[number % ranks][number // ranks] for number in range(len(groups))])
        before = sum(map(len, rows_by_rank[:rank]))
        return scored[before : before + len(rows_by_rank[rank])]


def _size_now(trainer: Any, size: int) -> int:
    """Completions per prompt in this batch: evaluation has a number of its own (`num_generations_eval`)."""
    model = getattr(trainer, "model", None)
    return size if model is None or model.training else getattr(trainer, "num_generations_eval", size)


def _cell(columns: dict[str, Any], name: str, number: int) -> Any:
    if name not in columns:
        there = ", ".join(sorted(column for column, values in columns.items() if isinstance(values, list)))
        raise JudgeError(f"the dataset has no column {name!r}.", f"Name one of its columns: {there}.")
    return columns[name][number]


def _explanation(scored: Scored) -> str:
    if scored.reward is not None:
        return scored.judgement.explanation
    if scored.judgement.score is None:
        return f"not scored: {scored.reason}"
    return f"no reward, as another completion of the group was not scored: {scored.reason}"


def _rank() -> tuple[int, int]:
    """This process's rank, and the number of processes."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _gather(work: Callable[[], T], ranks: int) -> list[T]:
    """The results of `work` on all ranks. Raises its first error on any of them."""
    outcomes: list[Any] = [None] * ranks
    own: Exception | None = None
    try:
        outcomes[0] = work()
    except Exception as error:
        own = error
    if ranks > 1:
        from torch import distributed

        sent = own and (own if isinstance(own, JudgeError) else JudgeError(f"{type(own).__name__}: {own}"))
        distributed.all_gather_object(outcomes, sent or outcomes[0])  # pyright: ignore[reportUnknownMemberType]
    if own is not None:
        raise own
    for number, other in enumerate(outcomes):
        if isinstance(other, Exception):
            raise JudgeError(f"judging failed in process {number} of {ranks}: {other}") from other
    return outcomes
