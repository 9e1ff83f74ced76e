"""The embedded policies: their tokenizer, and the demonstrations that they were cloned from."""

import asyncio
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from benchmarks.clone_policy import (
    COURSES,
    END_OF_TURN,
    PADDING,
    Demonstration,
    Writer,
    backward,
    make_model,
    preamble_of,
    token_id,
)
from gavel.scenarios.scenario import find_scenario
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


def test_the_gradient_is_that_of_the_mean_over_all_cloned_tokens() -> None:
    policy = next(iter(SCENARIOS))
    found, _ = written(policy, "careful", 3)
    hasty, _ = written(policy, "hasty", 4)
    batch = sorted([*found, *hasty], key=lambda each: len(each.token_ids))
    tokenizer = AutoTokenizer.from_pretrained(str(embedded_path(policy)))
    torch.manual_seed(0)
    model = make_model(tokenizer).double()
    loss = backward(model, preamble_of(batch), batch, token_id(tokenizer, PADDING), rows=3)
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    count = sum(sum(each.cloned) for each in batch)
    plain = torch.zeros(())
    for each in batch:
        ids, cloned = torch.tensor([each.token_ids]), torch.tensor(each.cloned)[1:]
        logits = model(input_ids=ids).logits[0, :-1]
        plain = plain - logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0][cloned].sum() / count
    plain.backward()
    assert loss == pytest.approx(plain.item(), abs=1e-4)
    for one, parameter in zip(gradients, model.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(one, parameter.grad, rtol=1e-3, atol=1e-5)


@given(st.from_regex(r"[0-9]{1,12}", fullmatch=True))
def test_every_digit_is_a_token(policy, number):
    ids = policy.tokenizer.encode(f"order {number}", add_special_tokens=False)
    assert [policy.tokenizer.decode([token]) for token in ids[-len(number) :]] == list(number)


@pytest.mark.parametrize("policy", SCENARIOS)
def test_every_policy_ships_and_was_cloned_from_its_own_scenario(policy: str) -> None:
    course = COURSES[policy]
    assert course.scenario is find_scenario(SCENARIOS[policy])
    shipped = {file.name for file in embedded_path(policy).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= shipped


@pytest.mark.parametrize("policy", SCENARIOS)
def test_no_held_out_task_is_demonstrated(policy: str) -> None:
    course = COURSES[policy]
    demonstrated = {course.tasks[index].id for index in range(0, len(course.tasks), 97)}
    assert demonstrated.isdisjoint(task.id for task in course.scenario.tasks("held_out"))
