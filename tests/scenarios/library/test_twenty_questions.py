import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from gavel.scenarios.library.twenty_questions import ANIMALS, FACTS, answer, scenario
from gavel.scenarios.rollout import rollout
from tests.scenarios.library.scripts import script


def expert() -> Any:
    def steps() -> Generator[str, str, None]:
        left = set(ANIMALS)
        while len(left) > 1:
            fact = min(FACTS, key=lambda one: abs(2 * len(left & FACTS[one]) - len(left)))
            if not left & FACTS[fact] or left <= FACTS[fact]:
                break
            said = yield f"Does {fact} have to do with it?"
            left = left & FACTS[fact] if said == "Yes." else left - FACTS[fact]
        for animal in sorted(left):
            yield f"Is it the {animal}?"

    return script(steps)


def fool() -> Any:
    def steps() -> Generator[str, str, None]:
        while True:
            yield "What is it?"

    return script(steps)


async def test_an_expert_finds_every_animal_and_a_fool_none():
    tasks = [*scenario.tasks("train"), *scenario.tasks("held_out")]
    for task in tasks:  # one at a time: the script tells episodes apart by their opening, which is the same here
        episode = await rollout(expert(), scenario, task)
        assert scenario.success is not None
        assert scenario.success(episode), task.id
        assert episode.status == "finished"
        assert episode.messages()[-1] == {"role": "user", "content": f"Yes, it is the {task.id}."}
        assert episode.metrics["user_calls"] == episode.metrics["turns"]
    fools = await asyncio.gather(*(rollout(fool(), scenario, task) for task in tasks[:1]))
    assert {episode.status for episode in fools} == {"truncated"}
    assert not any(scenario.success(episode) for episode in fools)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("Can it fly?", "Yes."),
        ("Does it live in the sea?", "No."),
        ("Is it a bird that can fly?", "I cannot answer that by yes or no."),
        ("Is it an eagle?", "No."),
        ("Is it an owl?", "Yes, it is the owl."),
        ("Is it an owl or an eagle?", "I cannot answer that by yes or no."),
        ("Hello", "I cannot answer that by yes or no."),
    ],
)
def test_questions_are_answered_by_the_facts(question: str, said: str):
    assert answer(question, "owl")[0] == said
