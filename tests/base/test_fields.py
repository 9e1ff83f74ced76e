"""Whatever the constructors and methods of the front door cannot take is a `GavelError` with a remedy."""

import gc
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gavel
from gavel.base.errors import GavelError

MESSAGES: Any = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


class Backend:
    async def given(self, model: object, *rest: object) -> list[object]:
        return list(rest)

    train = train_sft = log = given


MODEL = gavel.TrainableModel(name="model", project="tests", base_model="embedded/returns-desk")
MODEL._backend = Backend()  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage]
TOOLS = gavel.Toolbox([double])
ONE = gavel.Trajectory(messages_and_choices=MESSAGES)
GROUP = gavel.TrajectoryGroup([ONE, ONE])

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: gavel.Trajectory(rewards=1), "rewards"),  # type: ignore[call-arg]
    (lambda: gavel.Trajectory(messages=MESSAGES), "messages_and_choices"),  # type: ignore[call-arg]
    (lambda: gavel.Trajectory(messages_and_choices="hello"), "'hello'"),  # type: ignore[arg-type]
    (lambda: gavel.Trajectory(status="done"), "'done'"),  # type: ignore[arg-type]
    (lambda: gavel.Trajectory(metadata={"seen": {1, 2}}), "metadata.seen"),  # type: ignore[dict-item]
    (lambda: gavel.Trajectory(step_rewards=[1.0, None]), "step_rewards.1"),  # type: ignore[list-item]
    (lambda: gavel.Trajectory(step_rewards=0.5), "step_rewards"),  # type: ignore[arg-type]
    (lambda: gavel.Task(prompt="2 + 2?"), "prompt"),  # type: ignore[call-arg]
    (lambda: gavel.Task(user="2 + 2?", criteria="right"), "criteria"),  # type: ignore[arg-type]
    (lambda: gavel.TrainConfig(learning_rat=1), "learning_rate"),  # type: ignore[call-arg]
    (lambda: gavel.TrainConfig(learning_rate=-1), "learning_rate is -1"),
    (lambda: gavel.TrajectoryGroup([MESSAGES]), "list"),  # type: ignore[list-item]
    (lambda: gavel.Judge(3), "3"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "named"), REFUSED)
def test_what_cannot_be_made_is_refused_with_a_remedy(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(GavelError) as raised:
        make()
    assert named in str(raised.value)
    assert raised.value.remedy
    assert "\n" not in raised.value.message
    gc.collect()  # a coroutine that is still to run would warn, which fails here


REFUSED_CALLS: list[Callable[[], Any]] = [
    lambda: MODEL.train([ONE]),  # type: ignore[list-item]
    lambda: TOOLS.answer(None),
    lambda: gavel.ruler_score_group([ONE, ONE], "stand-in"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", REFUSED_CALLS)
async def test_what_cannot_be_done_is_refused_with_a_remedy(call: Callable[[], Any]) -> None:
    with pytest.raises(GavelError) as raised:
        await call()
    assert raised.value.remedy
    gc.collect()


async def test_settings_in_a_dict_are_a_config() -> None:
    assert await MODEL.train(GROUP, {"beta": 0.1}) == [[GROUP], gavel.TrainConfig(beta=0.1), None]
    with pytest.raises(GavelError, match="bta"):
        await MODEL.train(GROUP, {"bta": 0.1})


def test_values_of_numpy_are_plain_in_metadata() -> None:
    given = {"score": np.float32(0.5), "ids": np.arange(3), "pair": (1, {"sure": np.bool_(True)})}
    made = gavel.Trajectory(metadata=given)  # type: ignore[arg-type]
    assert made.metadata == {"score": 0.5, "ids": [0, 1, 2], "pair": [1, {"sure": True}]}
    assert gavel.Trajectory.from_json(made.to_json()) == made
    assert gavel.Trajectory(metrics={"share": Fraction(1, 2)}).metrics == {"share": 0.5}  # type: ignore[dict-item]


async def test_arguments_of_a_call_may_be_an_object() -> None:
    call = {"id": "1", "function": {"name": "double", "arguments": {"number": 21}}}
    assert await TOOLS.answer(call) == {"role": "tool", "tool_call_id": "1", "content": "42"}


def test_fields_that_a_later_version_stored_are_left_out() -> None:
    assert gavel.Trajectory.from_json('{"reward": 1.0, "of_later": true}').reward == 1.0
    assert len(gavel.TrajectoryGroup.from_json('{"trajectories": [{}, {}], "format": 9}')) == 2
