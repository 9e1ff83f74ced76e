"""What Gavel does not have of ART: scripts that import it for later train first, and then stop with one sentence."""

import importlib
import pkgutil
from typing import Any

import pytest

import gavel.integrations.art
from gavel.integrations.art.errors import NotInGavelError

LATER = [
    ("utils.deploy_model", "wait_for_together_job"),
    ("utils.deployment", "TogetherDeploymentConfig"),
    ("guided_completion", "get_guided_completion_params"),
    ("utils.benchmarking.charts", "percentage_comparison_bar_chart"),
    ("distributed", "ArtRuntime"),
]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("from {}.serverless import ServerlessBackend as Backend", "LocalBackend"),
        ("from {} import ServerlessBackend as Backend", "LocalBackend"),
        ("from {}.tinker_native import TinkerNativeBackend as Backend", "LocalBackend"),
        ("from {}.skypilot import SkyPilotBackend as Backend", "SkyPilotBackend"),
    ],
)
def test_a_backend_that_trains_elsewhere_names_what_trains_here(line: str, remedy: str):
    names: dict[str, Any] = {}
    exec(line.format("gavel.integrations.art"), names)
    with pytest.raises(NotInGavelError) as stopped:
        names["Backend"]()
    assert remedy in stopped.value.remedy


@pytest.mark.parametrize(("module", "name"), LATER)
def test_names_for_later_can_be_imported_and_stop_when_they_are_used(module: str, name: str):
    found = getattr(importlib.import_module(f"gavel.integrations.art.{module}"), name)
    for use in (lambda: found(), lambda: found.QWEN, lambda: found["a"]):
        with pytest.raises(NotInGavelError, match=rf"art\.{module.replace('.', '[.]')}\.{name}"):
            use()


def test_every_module_that_is_there_can_be_imported_and_a_misspelt_one_cannot():
    for module in pkgutil.walk_packages(gavel.integrations.art.__path__, "gavel.integrations.art."):
        importlib.import_module(module.name)
    for name in ("locla", "utils.retries", "utilities"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(f"gavel.integrations.art.{name}")


@pytest.mark.parametrize("line", ["from {} import apo", "from {}.pipeline_trainer import StatusReporter"])
def test_a_name_that_no_part_has_cannot_be_imported(line: str):
    with pytest.raises(ImportError):
        exec(line.format("gavel.integrations.art"), {})
