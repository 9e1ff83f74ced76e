"""A built-in model is trained on the one scenario that it knows, and others are named where it does not fit."""

from typing import Any

import pytest

from gavel.cli.options import ModelChoiceError, check_model
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.embedded import SCENARIOS
from gavel.trainer.run_config import RunConfig


def check(scenario: str, **model: Any) -> None:
    given = RunConfig.model_validate({"scenario": scenario, "model": model})
    check_model(given.resolved(), given, find_scenario(scenario))


@pytest.mark.parametrize(("base_model", "scenario"), SCENARIOS.items())
def test_a_built_in_model_is_trained_on_its_own_scenario(
    base_model: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(scenario, base_model=base_model)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("scenario", ["booking_desk", "text_adventure", "writing", "one_sentence"])
def test_without_a_model_those_that_fit_are_named(scenario: str) -> None:
    with pytest.raises(ModelChoiceError, match=f"knows the scenario returns_desk alone, and {scenario}") as error:
        check(scenario)
    assert "--model smollm2-135m" in str(error.value)
    made_for_it = [name for name, its_own in SCENARIOS.items() if its_own == scenario]
    assert all(f"--model {name}, a tiny one made for this scenario" in str(error.value) for name in made_for_it)
    assert ("a tiny one" in str(error.value)) == bool(made_for_it)


@pytest.mark.parametrize(
    ("base_model", "scenario"),
    [
        (name, other)
        for name in SCENARIOS
        for other in ("returns_desk", "booking_desk", "writing")
        if other != SCENARIOS[name]
    ],
)
def test_a_built_in_model_that_was_named_for_another_scenario_is_warned_of(
    base_model: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(scenario, base_model=base_model)
    warning = capsys.readouterr().err
    assert warning.startswith(f"Note: the built-in model {base_model} knows the scenario {SCENARIOS[base_model]} alone")


def test_a_built_in_model_learns_with_large_steps() -> None:
    for base_model in SCENARIOS:
        given = RunConfig.model_validate({"scenario": "writing", "model": {"base_model": base_model}})
        assert given.resolved().train.learning_rate == 2e-3
    other = RunConfig.model_validate({"scenario": "writing", "model": {"base_model": "Qwen/Qwen3-8B"}})
    assert other.resolved().train.learning_rate < 1e-4
