"""`gavel plan` as it is typed."""

import json

import pytest
from typer.testing import CliRunner

from gavel.cli.app import app
from gavel.trainer.embedded import EMBEDDED_PATH
from tests.trainer.counted_steps import counted_once

pytestmark = pytest.mark.slow
SMALL = ["plan", "embedded/returns-desk", "--max-context", "256"]


@pytest.fixture(scope="module", autouse=True)
def _plans_share_steps():
    with counted_once():
        yield


def gavel(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_plan_is_one_screen_of_sizes():
    told = gavel(*SMALL, "--gpu", "8")
    assert told.exit_code == 0, told.output
    assert len(told.output.splitlines()) < 24
    assert all(len(line) < 120 for line in told.output.splitlines())
    for words in ("base, frozen", "AdamW", "embedded", "with checkpointing", "all at once", "It fits"):
        assert words in told.output


def test_json_has_every_figure_in_bytes_and_nothing_else_is_printed():
    found = json.loads(gavel(*SMALL, "--gpu", "8", "--json").stdout)
    assert found["device_bytes"] == 8 * 2**30
    assert found["parameters"] > 300_000
    assert found["fits"] is True


def test_what_does_not_fit_says_so_by_its_status_and_names_options():
    told = gavel(*SMALL, "--gpu", "0.001")
    assert told.exit_code == 1
    assert "It does not fit. What helps:" in told.output
    assert "--" in told.output.split("What helps:")[1]


def test_gpu_0_plans_for_this_machine():
    found = json.loads(gavel("plan", str(EMBEDDED_PATH), "--gpu", "0", "--json").stdout)
    assert (found["device"], found["dtype"]) == ("cpu", "float32")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "/no/such/directory"], "the base model '/no/such/directory'"),
        (["plan", "embedded/returns-desk", "--gpu", "-1"], "--gpu"),
        (["plan", "embedded/returns-desk", "--gpu", "inf"], "--gpu"),
        (["plan", "embedded/returns-desk", "--lora-rank", "0"], "--lora-rank"),
        (["plan", "embedded/returns-desk", "--engine", "sglang"], "there is no engine 'sglang'"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, told):
    found = gavel(*arguments)
    assert found.exit_code != 0
    assert told in f"{found.output}{found.exception}"
