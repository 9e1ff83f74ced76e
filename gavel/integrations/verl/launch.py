"""Writes a scenario as a directory that verl users launch: dataset, reward file, tools, run script and README.

    train.parquet test.parquet     rows of data_source, prompt, ability, reward_model, extra_info
    judge_reward.py                compute_score: the judge service scores each group
    tools.yaml                     the scenario's tools, where it has some
    run.sh README.md

Scenarios that verl cannot play (a stateful environment, a simulated user, an own rollout, MCP servers) are rejected.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.base.files import replacing
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task

TOOL = "gavel.integrations.verl.tools.ScenarioTool"
_FILES = ("train.parquet", "test.parquet", "judge_reward.py", "tools.yaml", "run.sh", "README.md")


class VerlExportError(GavelError):
    """A scenario cannot be written for verl."""


@dataclass(frozen=True, slots=True)
class VerlLaunch:
    """Settings of the written run."""

    reference: str
    """The scenario's reference: `returns_desk`, `/path/file.py:variable`."""
    model: str
    service: str
    """Address of the judge service."""
    group_size: int
    train: int
    """Max training rows."""
    held_out: int


def export_verl(scenario: Scenario, launch: VerlLaunch, out: Path) -> list[Path]:
    """Writes the directory; returns its files. Raises `VerlExportError`."""
    _check(scenario)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise VerlExportError(f"{out} exists already", "Give another --out; nothing is written over.")
    tools = list(scenario.toolbox)
    values = {"launch": launch, "scenario": scenario, "has_tools": bool(tools)}
    made = {
        "judge_reward.py": render("verl/judge_reward.j2", launch=launch, rubric=scenario.rubric or ""),
        "run.sh": render("verl/run.j2", **values),
        "README.md": render("verl/readme.j2", **values),
    }
    if tools:
        entries = [
            {
                "class_name": TOOL,
                "config": {"type": "native", "scenario": launch.reference},
                "tool_schema": _plain_schema(each.schema),
            }
            for each in tools
        ]
        made["tools.yaml"] = yaml.safe_dump({"tools": entries}, sort_keys=False, allow_unicode=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (out / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        (out / "run.sh").chmod(0o755)
        write_rows(out / "train.parquet", verl_rows(scenario, scenario.tasks("train")[: launch.train], "train"))
        held_out = scenario.tasks("held_out")[: launch.held_out] or scenario.tasks("train")[:1]
        write_rows(out / "test.parquet", verl_rows(scenario, held_out, "test"))
    except OSError as error:
        raise VerlExportError(f"{out} cannot be written: {error.strerror or error}", "Give another --out.") from error
    return [out / name for name in _FILES if (out / name).is_file()]


def verl_rows(scenario: Scenario, tasks: Sequence[Task], split: str) -> list[dict[str, Any]]:
    """The rows of tasks. A task's reference is its ground truth; its hidden data goes to the tools alone."""
    rows: list[dict[str, Any]] = []
    names = [tool.name for tool in scenario.toolbox]
    for index, task in enumerate(tasks):
        info: dict[str, Any] = {"split": split, "index": index, "task": task.id}
        if task.rubric is not None:
            info["rubric"] = task.rubric
        if names:
            hidden = task.model_dump_json()
            info["need_tools_kwargs"] = True
            info["tools_kwargs"] = {name: {"create_kwargs": {"task": hidden}} for name in names}
        system = [{"role": "system", "content": scenario.system}] if scenario.system else []
        rows.append(
            {
                "data_source": scenario.name,
                "agent_name": "tool_agent" if names else "single_turn_agent",
                "prompt": [*system, {"role": "user", "content": task.user}],
                "ability": "agent" if names else "answer",
                "reward_model": {"style": "judge", "ground_truth": task.reference or ""},
                "extra_info": info,
            }
        )
    return rows


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes a parquet file. Raises `VerlExportError` without pyarrow."""
    try:
        import pyarrow  # pyright: ignore
        from pyarrow import parquet  # pyright: ignore
    except ImportError as error:
        told = "verl's datasets are parquet files, and pyarrow, which writes them, is not installed"
        raise VerlExportError(told, install_line("parquet")) from error
    with replacing(path) as unfinished:
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), str(unfinished))  # pyright: ignore


def _check(scenario: Scenario) -> None:
    lacking = {
        "an environment, whose state lasts from call to call": scenario.environment is not None,
        "a rollout of its own": scenario.rollout is not None,
        "a simulated user": scenario.user is not None,
        "tools of an MCP server": bool(scenario.servers),
    }
    if named := next((what for what, there in lacking.items() if there), None):
        raise VerlExportError(
            f"the scenario {scenario.name} has {named}, which verl's agent loop cannot play",
            "Export one of plain tools, or train this one here: gavel train.",
        )


def _plain_schema(schema: Message) -> Message:
    """The schema without constructs that verl's schema model lacks: each property has a `type` of its own."""
    plain = cast(Message, json.loads(json.dumps(schema)))
    parameters = cast(Message, plain["function"]["parameters"])
    parameters.setdefault("type", "object")
    properties: dict[str, Message] = parameters.setdefault("properties", {})
    for field in properties.values():
        options: list[Message] = field.pop("anyOf", [])
        if "type" not in field:
            field["type"] = [each["type"] for each in options if "type" in each] or "string"
    return plain
