"""The reward function as TRL calls it."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

import gavel
from gavel.base.errors import GavelError
from gavel.llm.budget import Budget
from gavel.integrations import trl
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import Endpoint, says
from tests.integrations.letters_judge import share_of_a
from tests.judge.service.stub_judge import by_content_and_position

MODEL = "openai/gpt-5-mini"


def asked(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


@pytest.fixture
def judge(endpoint: Endpoint) -> gavel.Judge:
    endpoint.script = [share_of_a]
    return gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)


def test_completions_of_one_prompt_are_judged_together_wherever_they_stand(judge: gavel.Judge, endpoint: Endpoint):
    reward = trl(judge)
    prompts = [asked("one"), asked("two"), asked("one"), asked("two")]
    rewards = reward(prompts=prompts, completions=[said("a b"), said("a a"), said("b b"), said("a c d e")])
    assert rewards == [0.5, 1.0, 0.0, 0.25]
    shown = [request["messages"][1]["content"] for request in endpoint.requests]
    assert all(("user: one" in text) != ("user: two" in text) for text in shown)


def test_text_and_messages_are_both_read(judge: gavel.Judge):
    assert trl(judge)(prompts=["one", "one"], completions=["a b", "a a"]) == [0.5, 1.0]


def test_it_scores_bit_for_bit_as_the_judge_does(endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)
    answers = [f"answer-worth-{number}" for number in range(4)]
    members = [gavel.Trajectory(messages_and_choices=[*asked("one"), *said(text)]) for text in answers]
    direct = TrajectoryGroup(members)
    rewards = trl(judge)(prompts=[asked("one")] * 4, completions=[said(text) for text in answers])
    assert rewards == [t.reward for t in trl_judged(judge, direct)]


def trl_judged(judge: gavel.Judge, group: TrajectoryGroup) -> TrajectoryGroup:
    from gavel.integrations._rewards import run

    return run(judge.score(group))


def test_a_prompt_that_stands_twice_in_a_batch_is_two_groups_of_num_generations(judge: gavel.Judge, endpoint: Endpoint):
    completions = [said(text) for text in ("a b", "a a", "b b", "a c d e")]
    trl(judge, num_generations=2)(prompts=[asked("one")] * 4, completions=completions)
    assert len(endpoint.requests) == 4
    trl(judge)(prompts=[asked("one")] * 4, completions=completions)
    assert len(endpoint.requests) == 6


def test_a_column_says_which_completions_belong_together_where_prompts_differ(judge: gavel.Judge, endpoint: Endpoint):
    prompts = [asked("room 1"), asked("room 2")]
    rewards = trl(judge, group_by="task")(prompts=prompts, completions=[said("a b"), said("a")], task=[7, 7])
    assert rewards == [0.5, 1.0]
    with pytest.raises(JudgeError, match="no column 'job'"):
        trl(judge, group_by="job")(prompts=prompts, completions=[said("a b"), said("a")], task=[7, 7])


COLUMNS: dict[str, dict[str, list[Any]]] = {
    "answer": {"answer": ["zebra-fact"] * 2},
    "reference": {"reference": ["zebra-fact"] * 2},
    "rubric": {"rubric": ["Prefer the zebra-fact."] * 2},
    "criteria": {"criteria": [["It names the zebra-fact."]] * 2},
}


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_of_the_dataset_reach_the_judge(column: str, judge: gavel.Judge, endpoint: Endpoint):
    trl(judge)(prompts=[asked("one")] * 2, completions=[said("a b"), said("a")], **COLUMNS[column])
    assert "zebra-fact" in str(endpoint.requests[0]["messages"])


def test_a_column_of_another_name_may_hold_the_reference(judge: gavel.Judge, endpoint: Endpoint):
    rewards = [said("a b"), said("a")]
    trl(judge, reference_column="solution")(prompts=[asked("one")] * 2, completions=rewards, solution=["zebra"] * 2)
    assert "zebra" in str(endpoint.requests[0]["messages"])


def test_prompts_with_different_references_are_different_groups(judge: gavel.Judge, endpoint: Endpoint):
    completions = [said(text) for text in ("a b", "a a", "b b", "a c d e")]
    trl(judge)(prompts=[asked("one")] * 4, completions=completions, answer=["x", "x", "y", "y"])
    assert len(endpoint.requests) == 4


def test_tool_calls_as_trl_writes_them_are_read(judge: gavel.Judge, endpoint: Endpoint):
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"order": 7890}}}
    completion = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "name": "look_up", "content": "9 days old"},
        {"role": "assistant", "content": "a a"},
    ]

    def look_up(order: int) -> str:
        """Finds an order by its number."""
        return ""

    rewards = trl(judge, tools=[look_up])(prompts=[asked("one")] * 2, completions=[completion, said("a b")])
    assert rewards[1] == 0.5
    shown = str(endpoint.requests[0]["messages"])
    assert "7890" in shown
    assert "9 days old" in shown


def test_an_image_of_pil_is_sent_to_the_judge(endpoint: Endpoint):
    pil = pytest.importorskip("PIL.Image")
    endpoint.script = [lambda request: says("no")]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), config=gavel.JudgeConfig(images="send"))
    content = [{"type": "image", "image": pil.new("RGB", (2, 2))}, {"type": "text", "text": "What is it?"}]
    prompts = [[{"role": "user", "content": content}]] * 2
    trl(judge)(prompts=prompts, completions=[said("a b"), said("a")])
    assert "data:image/png;base64," in str(endpoint.requests[0]["messages"])


@pytest.mark.parametrize(
    ("unscored", "expected"), [("group", [None, None, 0.5, 1.0]), ("member", [None] * 2 + [0.5, 1.0])]
)
def test_what_the_judge_cannot_score_is_none_and_costs_no_other_group(
    unscored: Any, expected: list[float | None], endpoint: Endpoint
):
    endpoint.script = [
        lambda request: says("I cannot tell.") if "user: one" in str(request["messages"]) else share_of_a(request)
    ]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)
    prompts = [asked("one"), asked("one"), asked("two"), asked("two")]
    completions = [said("a b"), said("a a"), said("a b"), said("a")]
    assert trl(judge, unscored=unscored)(prompts=prompts, completions=completions) == expected
    with pytest.raises(JudgeError, match="scored 0 of 2"):
        trl(judge, unscored="raise")(prompts=prompts, completions=completions)


def test_a_judge_that_cannot_be_asked_ends_the_training():
    with pytest.raises(JudgeError, match="OPENAI_API_KEY"):
        trl(MODEL)(prompts=[asked("one")] * 2, completions=[said("a b"), said("a")])


def test_it_logs_explanations_and_what_was_not_scored(judge: gavel.Judge):
    extra: dict[str, list[Any]] = {}
    metrics: dict[str, float] = {}
    rewards = trl(judge)(
        prompts=[asked("one"), asked("one"), asked("two"), asked("two")],
        completions=[said("a b"), said("a a"), said("b"), said("b")],
        completion_ids=[[1]] * 4,
        trainer_state=object(),
        log_extra=extra.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert rewards == [0.5, 1.0, None, None]
    assert extra["judge_explanation"][0] == "counted"
    assert extra["judge_explanation"][2].startswith("not scored: ")
    assert metrics["judge/unscored"] == 0.5
    assert metrics["judge/standard_error"] >= 0


def test_it_has_a_name_and_a_signature_as_trl_and_axolotl_want_them():
    from inspect import iscoroutinefunction, signature

    reward = trl("stand-in", name="helpfulness")
    assert reward.__name__ == "helpfulness"
    assert list(signature(reward).parameters)[:2] == ["prompts", "completions"]
    assert not iscoroutinefunction(reward.__call__)


def test_it_goes_to_other_processes_when_its_judge_is_named():
    reward = pickle.loads(pickle.dumps(trl("stand-in", rubric="- ends with a message", unscored="member")))
    assert reward(prompts=["one", "one"], completions=["It is done.", ""]) == [1.0, 0.0]


class Trainer:
    """What a GRPOTrainer says of its groups to the reward function that it gives its `_log_metric`."""

    num_generations = 4
    num_generations_eval = 2

    def __init__(self, training: bool = True) -> None:
        self.model = SimpleNamespace(training=training)

    def log_metric(self, name: str, value: float) -> None: ...


def test_a_number_of_generations_that_is_not_the_trainers_is_refused(judge: gavel.Judge, endpoint: Endpoint):
    completions = [said(text) for text in ("a b", "a a", "b b", "a c d e")]
    batch: dict[str, Any] = {"prompts": [asked("one")] * 4, "completions": completions}
    with pytest.raises(JudgeError, match=r"num_generations=2 was given, and the trainer makes 4"):
        trl(judge, num_generations=2)(**batch, log_metric=Trainer().log_metric)
    assert not endpoint.requests
    assert trl(judge, num_generations=4)(**batch, log_metric=Trainer().log_metric) == [0.5, 1.0, 0.0, 0.25]


def test_evaluation_has_a_number_of_generations_of_its_own(judge: gavel.Judge, endpoint: Endpoint):
    completions = [said(text) for text in ("a b", "a a", "b b", "a c d e")]
    evaluation = Trainer(training=False).log_metric
    trl(judge, num_generations=4)(prompts=[asked("one")] * 4, completions=completions, log_metric=evaluation)
    assert len(endpoint.requests) == 4  # two groups in two orders


def test_a_budget_that_is_used_up_ends_the_training(endpoint: Endpoint):
    endpoint.script = [share_of_a]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=1, budget=Budget(max_tokens=1))
    with pytest.raises(JudgeError, match="the budget is used up"):
        trl(judge)(prompts=["one", "one"], completions=["a b", "a"])


def test_a_completion_that_is_none_is_refused_with_what_to_give(judge: gavel.Judge):
    with pytest.raises(GavelError, match="is None"):
        trl(judge)(prompts=["one", "one"], completions=["a b", None])  # type: ignore[list-item]
