"""`gavel plan` as it is typed."""

import json

import pytest
from typer.testing import CliRunner

from gavel.cli.app import app
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.memory.plan import size
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
    assert "MiB missing. What helps:" in told.output
    helps = told.output.split("What helps:")[1]
    assert "  --quantization 4bit: saves" in helps


@pytest.mark.parametrize(
    ("arguments", "named", "together"),
    [
        (["--gpu", "0.03", "--max-context", "4096"], ["--max-context", "--engine"], False),
        (
            ["--gpu", "0.02", "--no-gradient-checkpointing", "--micro-batch-tokens", "16384"],
            ["--gradient-checkpointing", "--micro-batch-tokens", "--shard-base"],
            True,
        ),
        (["--gpu", "0.03", "--engine", "vllm"], ["backend.engine.sleep", "--max-context"], False),
    ],
)
def test_every_remedy_has_the_effect_that_is_told_of_it(arguments, named, together):
    """Each is typed beside the other options, as it is printed."""
    plan = ["plan", "embedded/returns-desk", "--json", *arguments]
    before = json.loads(gavel(*plan).stdout)
    remedies = [remedy.split(": ", 1) for remedy in before["remedies"] if remedy.startswith("--")]
    assert all(any(name in option for option, _ in remedies) for name in named)
    assert together == any("together" in effect for _, effect in remedies)
    for option, effect in remedies:
        after = json.loads(gavel(*plan, *option.split()).stdout)
        saved = size(before["missing"] - after["missing"])
        assert ("it fits" in effect) if after["fits"] else effect.startswith(f"saves {saved} of the "), option
        assert after["missing"] < before["missing"]


def test_a_setting_without_an_option_of_its_own_is_planned_too():
    plan = ["plan", "embedded/returns-desk", "--gpu", "8", "--json"]
    assert json.loads(gavel(*plan, "--set", "backend.slots=3").stdout)["conversations"] == 3


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
