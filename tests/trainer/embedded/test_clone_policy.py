"""The embedded policies: their tokenizer, and the tasks that they were cloned from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.clone_policy import COURSES
from gavel.trainer.embedded import SCENARIOS


@given(st.from_regex(r"[0-9]{1,12}", fullmatch=True))
def test_every_digit_is_a_token(policy, number):
    ids = policy.tokenizer.encode(f"order {number}", add_special_tokens=False)
    assert [policy.tokenizer.decode([token]) for token in ids[-len(number) :]] == list(number)


@pytest.mark.parametrize("policy", SCENARIOS)
def test_no_held_out_task_is_demonstrated(policy: str) -> None:
    course = COURSES[policy]
    demonstrated = {course.tasks[index].id for index in range(0, len(course.tasks), 97)}
    assert demonstrated.isdisjoint(task.id for task in course.scenario.tasks("held_out"))
