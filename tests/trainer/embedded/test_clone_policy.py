"""The embedded policies: their tokenizer, and the demonstrations that they were cloned from."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from benchmarks.clone_policy import (
    COURSES,
    END_OF_TURN,
    Demonstration,
    Writer,
)
from gavel.trainer.embedded import SCENARIOS, embedded_path


def written(policy: str, clerk: str, count: int) -> tuple[list[Demonstration], list[str]]:
    """Demonstrations, and what the clerk says in them."""
    tokenizer = AutoTokenizer.from_pretrained(str(embedded_path(policy)))
    found = asyncio.run(Writer(COURSES[policy], tokenizer).demonstrations([clerk] * count, random.Random(0)))
    said = [[i for i, cloned in zip(each.token_ids, each.cloned, strict=True) if cloned] for each in found]
    return found, [str(tokenizer.decode(ids)) for ids in said]


@pytest.mark.parametrize("policy", SCENARIOS)
def test_what_the_clerk_says_is_cloned_and_nothing_else(policy: str) -> None:
    found, texts = written(policy, "careful", 6)
    for each, text in zip(found, texts, strict=True):
        assert len(each.token_ids) == len(each.cloned)
        assert text.count("<tool_call>") == text.count(END_OF_TURN) - 1 >= 1
        assert "tool_response" not in text
        assert each.cloned[-1]


@given(st.from_regex(r"[0-9]{1,12}", fullmatch=True))
def test_every_digit_is_a_token(policy, number):
    ids = policy.tokenizer.encode(f"order {number}", add_special_tokens=False)
    assert [policy.tokenizer.decode([token]) for token in ids[-len(number) :]] == list(number)


@pytest.mark.parametrize("policy", SCENARIOS)
def test_no_held_out_task_is_demonstrated(policy: str) -> None:
    course = COURSES[policy]
    demonstrated = {course.tasks[index].id for index in range(0, len(course.tasks), 97)}
    assert demonstrated.isdisjoint(task.id for task in course.scenario.tasks("held_out"))
