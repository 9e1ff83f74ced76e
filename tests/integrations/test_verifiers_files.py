"""Packages of scenarios for verifiers, without verifiers."""

import tomllib
from pathlib import Path

from gavel.integrations.verifiers.environment import write_package

SHOP = "import gavel\nshop = gavel.Scenario('shop', tasks=[gavel.Task(user='Hi.')], held_out=[]{more})\n"


def test_the_package_names_its_modules_and_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(more=", success=lambda found: True"))
    assert write_package(f"{tmp_path / 'shop.py'}:shop", tmp_path / "out") == "gavel-shop"
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["py-modules"] == ["gavel_shop", "gavel_shop_scenario"]
    assert "gavel-rl" in project["project"]["dependencies"]
    module = (tmp_path / "out" / "gavel_shop.py").read_text()
    compile(module, "gavel_shop.py", "exec")
    assert '"gavel_shop_scenario.py")) + ":shop"' in module
    assert (tmp_path / "out" / "gavel_shop_scenario.py").read_text() == (tmp_path / "shop.py").read_text()
