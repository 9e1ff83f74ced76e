"""What an address of a verl dataset says.

train.parquet?held_out=test.parquet&reward=reward.py:compute_score&success=1&tools=tools.yaml&turns=8
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from gavel.scenarios.scenario import ScenarioError

_SHOW = "Write verl:train.parquet?held_out=test.parquet&reward=module:function (docs/bridges.md)."
_OPTIONS = ("held_out", "reward", "success", "tools", "turns", "tasks", "seconds", "reference", "name")


@dataclass(frozen=True, slots=True)
class VerlAddress:
    """Where the data, the reward and the tools are."""

    data: Path
    held_out: Path | None
    """Default: a fifth of the rows."""
    reward: str | None
    """`module:function` or `file.py:function`."""
    success: float | None
    """Score from which on an attempt succeeds."""
    tools: Path | None
    """verl's YAML of tools."""
    turns: int
    """Of the agent."""
    tasks: int | None
    """Rows to train on, from the first; None: all."""
    seconds: float | None
    """Of an episode."""
    reference: bool
    """Whether the judge is told the ground truth."""
    name: str
    """Of the scenario: its runs are kept under it."""


def parse(address: str) -> VerlAddress:
    """Raises `ScenarioError`."""
    path, _, query = address.partition("?")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ScenarioError(f"verl:{path} has no option {name!r}", f"There are: {', '.join(_OPTIONS)}. {_SHOW}")
        if name in options or not value:
            raise ScenarioError(f"the option {name} of verl:{path} is given twice, or empty", _SHOW)
        options[name] = value
    if not path:
        raise ScenarioError("verl: names no file", _SHOW)
    if "success" in options and "reward" not in options:
        raise ScenarioError("success= needs a reward to compare with", f"Add reward=module:function. {_SHOW}")
    return VerlAddress(
        data=Path(path).expanduser(),
        held_out=_path(options, "held_out"),
        reward=options.get("reward"),
        success=_number(options, "success"),
        tools=_path(options, "tools"),
        turns=_whole(options, "turns") or 8,
        tasks=_whole(options, "tasks"),
        seconds=_number(options, "seconds"),
        reference=_flag(options, "reference"),
        name=options.get("name") or f"verl_{Path(path).stem}",
    )


def _path(options: dict[str, str], name: str) -> Path | None:
    return Path(options[name]).expanduser() if name in options else None


def _number(options: dict[str, str], name: str) -> float | None:
    if name not in options:
        return None
    try:
        return float(options[name])
    except ValueError as error:
        raise ScenarioError(f"{name}={options[name]} is no number", _SHOW) from error


def _whole(options: dict[str, str], name: str) -> int | None:
    value = _number(options, name)
    if value is None:
        return None
    if value != int(value) or value < 1:
        raise ScenarioError(f"{name}={options[name]} is no whole number from 1", _SHOW)
    return int(value)


def _flag(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "yes").lower()
    if value not in ("yes", "no", "true", "false", "1", "0"):
        raise ScenarioError(f"{name}={options[name]} is neither yes nor no", _SHOW)
    return value in ("yes", "true", "1")
