"""`gavel plan` as it is typed."""

import json

import pytest
from typer.testing import CliRunner

from gavel.cli.app import app
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.memory.plan import size
from tests.trainer.conftest import counted_once  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("counted_once")]
SMALL = ["plan", "embedded/returns-desk", "--max-context", "256"]


def gavel(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_plan_is_one_screen_of_sizes_and_its_status_says_whether_it_fits():
    told = gavel(*SMALL, "--gpu", "8")
    assert told.exit_code == 0, told.output
    assert len(told.output.splitlines()) < 24
    assert all(len(line) < 120 for line in told.output.splitlines())
    assert "It fits" in told.output
    found = json.loads(gavel(*SMALL, "--gpu", "8", "--json", "--set", "backend.slots=3").stdout)
    assert (found["device_bytes"], found["fits"], found["conversations"]) == (8 * 2**30, True, 3)
    assert found["parameters"] > 300_000
    missing = gavel(*SMALL, "--gpu", "0.001")
    assert missing.exit_code == 1
    assert "  --quantization 4bit: saves" in missing.output.split("MiB missing. What helps:")[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpu", "0.03", "--max-context", "4096"], ["--max-context", "--engine"]),
        (
            ["--gpu", "0.02", "--no-gradient-checkpointing", "--micro-batch-tokens", "16384"],
            ["--gradient-checkpointing", "--micro-batch-tokens", "--shard-base", "Several of these"],
        ),
        (["--gpu", "0.03", "--engine", "vllm"], ["backend.engine.sleep", "--max-context"]),
    ],
)
def test_every_remedy_has_the_effect_that_is_told_of_it(arguments, named):
    """Each is typed beside the other options, as it is printed."""
    plan = ["plan", "embedded/returns-desk", "--json", *arguments]
    before = json.loads(gavel(*plan).stdout)
    remedies = [remedy.split(": ", 1) for remedy in before["remedies"] if remedy.startswith("--")]
    assert all(any(name in remedy for remedy in before["remedies"]) for name in named)
    for option, effect in remedies:
        after = json.loads(gavel(*plan, *option.split()).stdout)
        saved = size(before["missing"] - after["missing"])
        assert ("it fits" in effect) if after["fits"] else effect.startswith(f"saves {saved} of the "), option
        assert after["missing"] < before["missing"]


def test_gpu_0_plans_for_this_machine():
    found = json.loads(gavel("plan", str(EMBEDDED_PATH), "--gpu", "0", "--json").stdout)
    assert (found["device"], found["dtype"]) == ("cpu", "float32")
