"""eval-protocol: the rollouts of one row are judged against each other (`mode="groupwise"`).

    judged = gavel.integrations.eval_protocol.evaluate("openai/gpt-5-mini", rubric="…")

    @evaluation_test(input_messages=[…], completion_params=[{…}, {…}], mode="groupwise")
    async def test_desk(rows: list[EvaluationRow]) -> list[EvaluationRow]:
        return await judged(rows)

Written against eval-protocol 0.3.33. A row without a score has `is_score_valid=False`, and its aggregates leave it out.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from gavel.integrations._rewards import JudgeLike, Scored, Scorer, Unscored, member, part, truth_metadata
from gavel.judge.rubric import Rubric
from gavel.scenarios.trajectory import Trajectory

Row = Any
"""An `eval_protocol.models.EvaluationRow`."""
_SHOWN = {"role", "content", "name", "tool_calls", "tool_call_id", "function_call"}
"""Message fields shown to the judge; hidden reasoning and the framework's own fields are dropped."""
_LAST_RPC_ERROR = 16
"""Status codes of a rollout from 1 to this are google.rpc's errors; higher ones are eval-protocol's own."""


def evaluate(
    judge: JudgeLike | None = None, *, rubric: Rubric | str | None = None, unscored: Unscored = "member"
) -> Callable[[list[Row]], Awaitable[list[Row]]]:
    """The body of an evaluator of the mode "groupwise": sets `evaluation_result` of each row, and returns the rows.

    `judge`: a model, a judge or a service's address (see `Scorer`). A row's `ground_truth` is shown to the judge as the
    reference. `unscored`: "member" makes the score of a row without one invalid, "group" those of all rows of the
    group, "raise" ends the evaluation.
    """
    return partial(_evaluated, Scorer(judge, rubric, unscored))


__all__ = ["evaluate"]


async def _evaluated(scorer: Scorer, rows: list[Row]) -> list[Row]:
    for row, scored in zip(rows, await scorer.score(map(_member, rows)), strict=True):
        row.evaluation_result = _result(scored)
    return rows


def _member(row: Row) -> Trajectory:
    messages = [message.model_dump(include=_SHOWN, exclude_none=True) for message in row.messages]
    failed = 0 < row.rollout_status.code <= _LAST_RPC_ERROR
    ended = {"status": "failed", "status_reason": row.rollout_status.message} if failed else {}
    return member(messages, [], tools=row.tools, metadata=truth_metadata({}, row.ground_truth), **ended)


def _result(scored: Scored) -> Any:
    result, metric = part("eval_protocol.models", "EvaluateResult"), part("eval_protocol.models", "MetricResult")
    if scored.reward is None:
        return result(score=0.0, is_score_valid=False, reason=scored.reason, error=scored.reason)
    error = scored.judgement.standard_error
    metrics = {} if error is None else {"standard_error": metric(score=error, reason="of the judge's score")}
    return result(score=scored.reward, reason=scored.judgement.explanation, metrics=metrics)
