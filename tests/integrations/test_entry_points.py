"""Integrations are found by what they hold: ours by their folders, and those of other distributions by entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.base import entry_points
from gavel.base.entry_points import EntryPointError
from gavel.scenarios.scenario import ScenarioError, find_scenario
from tests.limits import HANG_SECONDS

ROOT = Path(__file__).parents[2]
STUB = '''
from typing import Annotated
import typer
import gavel
from gavel.scenarios.formats.exported import Export

NAME, HELP = "chess-board", "Show a board."

def command(size: Annotated[int, typer.Option(help="Of the board.")] = 8) -> None:
    """Show a board."""
    print(f"a board of {size}")

def reward_func(judge=None):
    return lambda *_: [1.0]

def scenario_at(address):
    return gavel.Scenario(f"chess {address}", tasks=[gavel.Task(user="Move.")], held_out=[])

def open_host(place, colour="white"):
    return f"{place} in {colour}"

def documents(groups, model, losses):
    for stored in groups:
        yield {"moves": len(stored.group)}

FORMATS = ()
EXPORTS = {"pgn": Export("chess games", (".pgn",), documents)}
__all__ = ["reward_func"]
'''
"""One module that holds all that an integration may."""


def python(program: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join(map(str, (*paths, ROOT)))
    command, environment = [sys.executable, "-P", "-c", program], {**os.environ, "PYTHONPATH": found}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)


def distribution(folder: Path, entries: dict[str, str], source: str = STUB) -> Path:
    """An installed distribution with a module `chess_gavel`."""
    about = folder / "chess_gavel-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "chess_gavel.py").write_text(source)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: chess-gavel\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{name} = chess_gavel\n" for group, name in entries.items())
    )
    return folder


def test_a_distribution_adds_a_reward_a_scenario_a_format_a_host_and_a_command(tmp_path: Path):
    kinds = ("rewards", "scenarios", "formats", "hosts", "commands")
    stub = distribution(tmp_path, {f"gavel.{kind}": "chess" for kind in kinds})
    done = python(
        "import gavel, sys\n"
        "from pathlib import Path\n"
        "from gavel.scenarios.formats.export import export_file, export_formats, stored_groups\n"
        "from gavel.scenarios.scenario import find_scenario\n"
        "from gavel.trainer.deploy.host import open_host\n"
        "print(gavel.integrations.chess.reward_func()(), 'chess' in dir(gavel.integrations))\n"
        "print(find_scenario('chess:e4').name)\n"
        "print(open_host('chess:cafe', colour='black'))\n"
        "group = gavel.TrajectoryGroup([gavel.Trajectory()])\n"
        f"out = Path({str(tmp_path)!r}) / 'games.pgn'\n"
        "print(export_file(stored_groups([group]), 'pgn', out).summary.partition(' to ')[0], out.read_text(), end='')\n"
        "from gavel.cli.app import app\n"
        "app(['chess-board', '--size', '5'])\n",
        stub,
    )
    assert done.stdout.splitlines() == [
        "[1.0] True",
        "chess e4",
        "cafe in black",
        'wrote 1 attempt of 1 group as chess games {"moves":1}',
        "a board of 5",
    ], done.stderr


@pytest.mark.parametrize(
    ("entries", "program", "told"),
    [
        ({"gavel.rewards": "trl"}, "import gavel; gavel.integrations.trl", "are both called 'trl'"),
        (
            {"gavel.scenarios": "agentgym"},
            "from gavel.scenarios.scenario import find_scenario; find_scenario('agentgym:x')",
            "are both called 'agentgym'",
        ),
        (
            {"gavel.hosts": "together"},
            "from gavel.trainer.deploy.host import open_host; open_host('together')",
            "are both called 'together'",
        ),
        (
            {"gavel.formats": "chess"},
            "import chess_gavel as c; c.EXPORTS['dpo'] = c.EXPORTS['pgn']\n"
            "from gavel.scenarios.formats.export import export_formats; export_formats()",
            "two formats are called 'dpo'",
        ),
    ],
    ids=["a reward", "a scenario", "a host", "a format"],
)
def test_a_name_of_ours_is_never_taken_in_silence(tmp_path: Path, entries: dict[str, str], program: str, told: str):
    done = python(program, distribution(tmp_path, entries))
    assert told in done.stderr
    assert "Uninstall" in done.stderr


def test_a_command_that_cannot_be_loaded_is_listed_and_says_why_when_it_is_run(tmp_path: Path):
    stub = distribution(tmp_path, {"gavel.commands": "chess"}, "import a_package_that_is_not_there\n")
    listed = python("from gavel.cli.app import app; app(['--help'])", stub)
    assert listed.returncode == 0, listed.stderr
    assert "chess" in listed.stdout
    run = python("from gavel.cli.app import app; app(['chess'])", stub)
    assert "a_package_that_is_not_there" in run.stderr
    same = distribution(tmp_path / "again", {"gavel.commands": "chess"}, "NAME, HELP = 'train', ''\ncommand = print\n")
    assert "both called 'train'" in python("from gavel.cli.app import app; app(['chess'])", same).stderr


NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("agentgym:nowhere", "no address"),
        ("agentgym:http://127.0.0.1:99999", "no address"),
        (f"agentgym:chess+{NOWHERE}", "no environment 'chess'"),
        (f"agentgym:{NOWHERE}?turns=0", "turns"),
        (f"agentgym:{NOWHERE}?tasks=5", "without held_out="),
        (f"agentgym:{NOWHERE}", "does not answer"),
        ("openenv:localhost:8000", "no address of a server"),
        (f"openenv:{NOWHERE}", "cannot be reached"),
        (f"openenv:{NOWHERE}?task=3", "task is no option"),
        (f"openenv:{NOWHERE}?tasks=many", "tasks is .many.: "),
        (f"openenv:{NOWHERE}?token=NO_SUCH_TOKEN", "not set"),
    ],
)
def test_an_address_that_is_none_says_what_to_type(address: str, told: str):
    with pytest.raises(ScenarioError, match=told) as caught:
        find_scenario(address)
    assert caught.value.remedy


def test_a_name_that_is_not_there_lists_those_that_are():
    with pytest.raises(AttributeError, match="verl"):
        __import__("gavel").integrations.no_such_system  # noqa: B018
    with pytest.raises(EntryPointError, match="verifiers"):
        entry_points.load("gavel.formats", "no_such_system")


LISTS = (
    "import json, gavel\n"
    "from gavel.base import entry_points\n"
    "from gavel.cli.app import COMMANDS, app\n"
    "from gavel.scenarios.formats.export import export_formats\n"
    "from gavel.scenarios.formats.reading import all_formats\n"
    "rewards = {name: getattr(gavel.integrations, name).__all__ for name in entry_points.names('gavel.rewards')}\n"
    "print(json.dumps([sorted(COMMANDS), sorted(rewards), export_formats(), [each.name for each in all_formats()]]))\n"
    "app(['--help'])\n"
)


@pytest.fixture(scope="module")
def had() -> list[list[str]]:
    return lists(python(LISTS))


@pytest.mark.parametrize("system", ["verl", "verifiers", "slime"])
def test_an_integration_can_be_deleted_without_another_file_changing(system: str, had: list[list[str]], tmp_path: Path):
    """A tree of links to all files of the package but those of the system."""
    package = tmp_path / "gavel"
    (package / "integrations").mkdir(parents=True)
    for entry in (ROOT / "gavel").iterdir():
        if entry.name != "integrations":
            (package / entry.name).symlink_to(entry)
    for entry in (ROOT / "gavel" / "integrations").iterdir():
        if entry.stem not in (system, "__pycache__"):
            (package / "integrations" / entry.name).symlink_to(entry)
    has = lists(python(LISTS, tmp_path))
    commands, rewards, exports, formats = (set(a) - set(b) for a, b in zip(had, has, strict=True))
    assert rewards == {system}
    assert commands == ({"export-verl"} if system == "verl" else set())
    assert not exports
    assert bool(formats) == (system == "verifiers")
    assert all(set(b) <= set(a) for a, b in zip(had, has, strict=True))


def lists(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert done.returncode == 0, done.stderr
    assert "send-atropos" in done.stdout
    return json.loads(done.stdout.splitlines()[0])
