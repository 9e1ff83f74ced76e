"""`gavel judge simulate`, in this process: it asks no model."""

import json

import pytest
from typer.testing import CliRunner

from gavel.cli.app import app
from gavel.judge.errors import JudgeError


def simulate(*options: str) -> str:
    result = CliRunner().invoke(app, ["judge", "simulate", "--groups", "6", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_shows_every_way_of_asking():
    shown = simulate("--orders", "1,2,2")
    assert [line.split("│")[0].strip() for line in shown.splitlines() if "│" in line] == [
        "1 call by arrival",
        "engine, 1 order",
        "engine, 2 orders",
    ]
    assert "6 groups of 8" in shown


def test_a_judge_without_faults_agrees_with_the_truth():
    perfect = [part for name in ("slope", "u", "noise", "halo", "step") for part in ("--bias", f"{name}=0")]
    told = json.loads(simulate("--json", "--orders", "2", *perfect))
    assert [row["tau"] for row in told["rows"]] == [1.0, 1.0]
    assert [row["calls_per_group"] for row in told["rows"]] == [1.0, 2.0]


def test_biases_reach_the_judge():
    calm, partial = (
        json.loads(simulate("--json", "--orders", "2", "--bias", "noise=0", *more))["rows"][1]
        for more in ([], ["--bias", "self_preference=2"])
    )
    assert partial["tau"] < calm["tau"] - 0.1


def test_faults_come_to_the_share_that_was_asked_for():
    told = json.loads(simulate("--json", "--orders", "4", "--faults", ".5"))
    assert told["faults"] == 0.5
    assert told["rows"][0]["unscored_members"] > 0
    assert told["rows"][1]["calls_per_group"] > 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--orders", "2,x"], "orders"),
        (["--orders", "0"], "orders"),
        (["--faults", "1.5"], r"faulty calls is from 0 to 1, not 1\.5\.$"),
        (["--bias", "noise=-1"], "noise"),
        (["--bias", "slope=nan"], "slope"),
        (["--bias", "compression=1"], "compression"),
        (["--bias", "charm=1"], "charm"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(options, words):
    with pytest.raises(JudgeError, match=words):
        simulate(*options)
