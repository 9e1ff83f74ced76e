import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Criterion
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import Truth, read_truth, truth_of, with_truth_of_rows

WORDS = st.text(min_size=1, max_size=9).filter(lambda text: text.strip() and len(text.splitlines()) == 1)
TRUTHS = st.builds(
    Truth,
    st.none() | WORDS,
    st.none() | WORDS,
    st.lists(st.builds(Criterion, WORDS, WORDS, st.floats(0, 9)), max_size=3).map(tuple),
)


def attempt(**metadata) -> Trajectory:
    return Trajectory(messages_and_choices=[{"role": "assistant", "content": "x"}], metadata=metadata)


@given(TRUTHS)
def test_what_is_dumped_is_read_back(truth):
    assert read_truth(json.loads(json.dumps(truth.dump()))) == truth
    assert bool(truth) == bool(truth.dump())


@given(TRUTHS)
def test_a_task_that_a_rollout_has_written_down_tells_its_truth(truth):
    task = Task(user="Hello", rubric=truth.rubric, reference=truth.reference, criteria=list(truth.criteria))
    written = json.loads(json.dumps({"task": task.model_dump(mode="json")}))
    assert Task.of(written) == task
    assert truth_of(TrajectoryGroup([attempt(**written), attempt(**written)])) == truth
    assert truth_of(TrajectoryGroup([attempt()], metadata=written)) == truth


@pytest.mark.parametrize(
    ("row", "truth"),
    [
        ({"answer": "42"}, Truth(reference="42")),
        ({"answer": 42}, Truth(reference="42")),
        ({"answer": "41", "reference": "42"}, Truth(reference="42")),
        ({"answer": {"size": "größer"}}, Truth(reference='{"size": "größer"}')),
        ({"answer": False}, Truth(reference="false")),
        ({"answer": 0}, Truth(reference="0")),
        ({"rubric": "- says hello"}, Truth(rubric="- says hello")),
        ({"criteria": ["Says hello."]}, Truth(criteria=(Criterion("criterion 1", "Says hello."),))),
        ({"criteria": '[{"name": "a", "text": "b", "weight": 2}]'}, Truth(criteria=(Criterion("a", "b", 2),))),
        ({"answer": "", "rubric": None, "criteria": [], "reference": "  "}, Truth()),
        ({"answer": math.nan, "model": "m"}, Truth()),
        ({"answer": np.float64(2.5), "criteria": np.array([])}, Truth(reference="2.5")),
        ({"answer": np.array([1, 2])}, Truth(reference="[1, 2]")),
        ({"criteria": np.array(["b"])}, Truth(criteria=(Criterion("criterion 1", "b"),))),
        ({"criteria": [{"name": "a", "text": "b", "weight": None, "x": None}]}, Truth(criteria=(Criterion("a", "b"),))),
    ],
)
def test_columns_of_a_row_are_read(row, truth):
    assert read_truth(row, of_row=True) == truth


@pytest.mark.parametrize("criteria", ["be kind", 3, [3], [{"name": "a"}], [{"name": "a", "text": "b", "weight": "2"}]])
def test_criteria_of_another_form_are_refused(criteria):
    with pytest.raises(JudgeError, match="these are no criteria"):
        read_truth({"criteria": criteria})


def test_members_with_different_truths_are_not_comparable():
    one, other = ({"task": Task(user="Hello", reference=reference).model_dump()} for reference in ("a", "b"))
    with pytest.raises(JudgeError, match="not comparable"):
        truth_of(TrajectoryGroup([attempt(**one), attempt(**other)]))
    with pytest.raises(JudgeError, match="not comparable"):
        truth_of(TrajectoryGroup([attempt(**one), attempt()]))
    with pytest.raises(JudgeError, match="not comparable"):
        truth_of(TrajectoryGroup([attempt(**one)], metadata=other))
    with pytest.raises(JudgeError, match="not comparable") as refused:
        with_truth_of_rows(TrajectoryGroup([attempt(answer="a"), attempt(answer="b")]))
    assert "--by" in refused.value.remedy


def test_the_truth_of_rows_becomes_that_of_their_group():
    rows = TrajectoryGroup([attempt(answer=42), attempt(answer=42)], metadata={"by": "x"})
    group = with_truth_of_rows(rows)
    assert group.metadata == {"by": "x", "truth": {"reference": "42"}}
    assert truth_of(group) == Truth(reference="42")
    assert with_truth_of_rows(group) == group
    assert with_truth_of_rows(TrajectoryGroup([attempt()])).metadata == {}


def test_criteria_of_a_task_are_those_of_a_rubric():
    assert Task(user="x", criteria=[{"name": "a", "text": "b"}]).criteria == [gavel.Criterion("a", "b")]  # type: ignore[list-item]
    with pytest.raises(JudgeError, match="has no text"):
        Task(user="x", criteria=[{"name": "a", "text": " "}])  # type: ignore[list-item]
