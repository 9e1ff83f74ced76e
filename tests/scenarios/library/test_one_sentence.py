"""What counts as one short sentence about a topic, and the orders of the writing desk."""

import pytest

from gavel.scenarios.library import writing
from gavel.scenarios.library.one_sentence import HELD_OUT, TRAIN, scenario, succeeded
from gavel.scenarios.trajectory import Trajectory


def said(reply: str | None, topic: str = "the sea", **more: object) -> Trajectory:
    (task,) = [task for split in ("train", "held_out") for task in scenario.tasks(split) if task.data["topic"] == topic]
    messages = [{"role": "user", "content": task.user}, {"role": "assistant", "content": reply}]
    return Trajectory(messages_and_choices=messages, metadata={"task": task.model_dump()}, **more)


SHORT = (
    "The sea is deep and blue.", "Is the sea not calm today?", '"The Sea roars at night!"', "Seas are wide and salty.",
)  # fmt: skip
OTHER = (
    "The sea is deep. It is blue.", "The sea is deep and blue", "The sea.", "", None, "It is deep and blue.",
    "The sea is a vast and ancient body of salt water that surrounds all of our planet.",
)  # fmt: skip


@pytest.mark.parametrize("reply", SHORT + OTHER)
def test_a_short_sentence_about_the_topic_succeeds_and_all_else_does_not(reply: str | None) -> None:
    assert succeeded(said(reply)) == (reply in SHORT)


def test_no_topic_is_trained_on_and_held_out() -> None:
    assert not {*TRAIN} & {*HELD_OUT}
    assert len({*TRAIN}) == len(TRAIN) == 60
    assert len({*HELD_OUT}) == len(HELD_OUT) == 96


def test_held_out_orders_are_new_pairs_of_known_forms_and_readers() -> None:
    train, held_out = writing.scenario.tasks("train"), writing.scenario.tasks("held_out")
    assert len(train) + len(held_out) == len(writing.FORMS) * len(writing.READERS)
    for key in ("form", "reader"):
        assert {task.data[key] for task in held_out} <= {task.data[key] for task in train}
