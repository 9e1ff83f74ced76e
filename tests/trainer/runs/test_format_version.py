"""Which versions of a run's files are read, and what an older description is upgraded to."""

import pytest

from gavel.trainer.runs.run_directory import (
    FORMAT_VERSION,
    FormatVersionError,
    check_format_version,
    with_later_settings,
)


def test_every_version_up_to_the_current_one_is_read_and_none_recorded_is_version_0():
    assert check_format_version(None, "model.json") == 0
    for version in range(FORMAT_VERSION + 1):
        assert check_format_version(version, "model.json") == version


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (FORMAT_VERSION + 1, "Upgrade Gavel"),
        (-1, "Restore"),
        ("1", "Restore"),
        (True, "Restore"),
        (1.0, "Restore"),
    ],
)
def test_a_newer_version_or_none_at_all_is_refused_with_the_remedy(version, remedy):
    with pytest.raises(FormatVersionError, match=r"^model.json has ") as error:
        check_format_version(version, "model.json")
    assert remedy in error.value.remedy


def test_a_version_that_can_no_longer_be_read_is_refused_with_the_remedy():
    with pytest.raises(FormatVersionError, match="from 3 on") as error:
        check_format_version(2, "model.json", oldest=3, newest=4)
    assert "the version of Gavel that began it" in error.value.remedy


def test_settings_that_came_later_do_not_make_another_experiment_and_other_facts_do():
    begun = {"scenario": "returns_desk", "training": {"beta": 0.0}}
    asked = {"scenario": "returns_desk", "training": {"beta": 0.0, "adam_betas": [0.9, 0.95]}, "judge": ["a"]}
    assert with_later_settings(begun, asked) == {"scenario": "returns_desk", "training": asked["training"]}
    assert with_later_settings({"training": {"beta": 1.0}}, asked)["training"]["beta"] == 1.0
    rewards = {"loop": {"reward": {"judge": 1.0}}}, {"loop": {"reward": {"judge": 1.0, "hand": 0.5}}}
    assert with_later_settings(*rewards) == rewards[0]
