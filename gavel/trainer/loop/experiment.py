"""The fingerprint of a run's experiment: a run resumes only with the one that it was begun with."""

import ast
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.prompts import content_hash
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.task import DrawnTasks, Task
from gavel.trainer.config import LoopConfig, TrainConfig

MOST_TASKS = 10_000
"""Max tasks of a split that are listed one by one."""
FIRST_DRAWN = 32
_INSTALLED = {"site-packages", "dist-packages"}
SPLITS: tuple[Split, ...] = ("train", "held_out")
_CHANGEABLE_LOOP = {
    *("steps", "concurrency", "keep_checkpoints", "keep_best", "keep_best_by", "stall_seconds", "on_alarm"),
    *("judged_tasks", "checks"),
}
"""Settings of the loop that may differ when a run goes on."""
_CHANGEABLE = {"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing", "restart"}
_NAMED_APART = {"models", "rubric", "mode", "anchors"}


def judges_of(mixture: Mixture, judge: Judge | None) -> dict[str, Judge]:
    """The judge of each scenario, by name: one without a rubric of its own takes the scenarios'."""
    if judge is None:
        return {}
    if len(mixture) == 1 or judge.rubric != Rubric.of(None):
        return {scenario.name: judge for scenario in mixture}
    return {each.name: judge if each.rubric is None else judge.with_rubric(each.rubric) for each in mixture}


def describe_run(mixture: Mixture, judge: Judge | None, loop: LoopConfig, train: TrainConfig) -> dict[str, Any]:
    """All that a run of the training loop is pinned to."""
    training = train.model_dump(mode="json", exclude=_CHANGEABLE)
    if train.reference_path is not None:
        training["reference"] = os.path.abspath(train.reference_path)  # wherever the command is typed
    described = describe_experiment(mixture, judge) | {"training": training}
    return described | {"loop": loop.model_dump(mode="json", exclude=_CHANGEABLE_LOOP)}


def describe_experiment(mixture: Mixture, judge: Judge | None) -> dict[str, Any]:
    """The fingerprint of a run's scenarios and judge."""
    experiment: dict[str, Any] = {
        "scenario": mixture.name,
        "scenarios": {scenario.name: describe_scenario(scenario) for scenario in mixture},
    }
    if len(mixture) > 1:
        experiment["mixture"] = mixture.dump()
    if judge is None:
        return experiment
    experiment |= describe_judge(judge)
    if len(mixture) > 1:
        experiment["rubrics"] = {name: each.rubric.dump() for name, each in judges_of(mixture, judge).items()}
    told = [task for scenario in mixture for split in SPLITS for task in _told(scenario.tasks(split))]
    truths = sorted(json.dumps([task.id, task.truth.dump()], ensure_ascii=False) for task in told if task.truth)
    experiment["references, rubrics and criteria of tasks"] = content_hash("\n".join(truths))
    return experiment


def describe_judge(judge: Judge) -> dict[str, Any]:
    """Models, rubric, and under `judging` whatever else changes a score; not retries, limits, costs and addresses."""
    judging = {name: value for name, value in judge.settings.items() if name not in _NAMED_APART | {"content_retries"}}
    return {
        "judge": judge.names,
        "rubric": judge.rubric.dump(),
        "orders": judge.orders,
        "mode": judge.mode,
        "anchors": sorted(anchor.id for anchor in judge.anchors),
        "judging": judging
        | {
            "orders": [juror.orders for juror in judge.jurors],
            "context": [juror.context for juror in judge.jurors],
        },
    }


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """The fingerprint of a scenario's tasks and tools, with hashes in place of long values.

    Functions (success, tools) are compared by source; so are their files, those of the world and of a custom rollout,
    and the modules that these import from their folders, also inside functions. Installed packages, data files and
    servers are left out. Names of tools, tasks and files end with @ and the hash of their content; more than MOST_TASKS
    tasks share one hash.
    """
    return describe_world(scenario) | {
        "code": hash_code(scenario),
        "success": source_hash(scenario.success),
        "hand_reward": source_hash(scenario.hand_reward),
        "train_tasks": _identities(scenario.tasks("train")),
        "held_out_tasks": _identities(scenario.tasks("held_out")),
    }


def describe_world(scenario: Scenario) -> dict[str, Any]:
    """The part of it that an agent meets: neither tasks nor what measures an episode."""
    return {
        "system": scenario.system,
        "tools": [
            f"{tool.name}@{content_hash(json.dumps([tool.schema, source_hash(tool.function)], sort_keys=True))}"
            for tool in scenario.own_tools
        ],
        "code": hash_code(scenario, checks=False),
        "tool_servers": [content_hash(str(server)) for server in scenario.servers],
        "user": None if scenario.user is None else [*scenario.user.settings],
        **scenario.limits,
    }


def hash_code(scenario: Scenario, *, checks: bool = True) -> list[str]:
    """The user's files that the scenario's behaviour is read from, as `name@hash`. `checks`: also by what they hold of
    `success` and the hand-written reward."""
    users = [scenario.success, scenario.hand_reward] if checks else []
    users += [scenario.environment, scenario.rollout, *(tool.function for tool in scenario.own_tools)]
    names = {str(getattr(inspect.unwrap(user), "__module__", "")) for user in users if user is not None}
    modules = [each for each in map(_find_module, names) if each]
    own_checks = [] if checks else [scenario.success, scenario.hand_reward]
    left_out = {str(getattr(check, "__name__", "")) for check in own_checks}
    found: dict[Path, str] = {}
    while modules:
        name, package, file = modules.pop()
        if file in found or name.partition(".")[0] == "gavel" or _INSTALLED & set(file.parts):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        tree.body = [each for each in tree.body if getattr(each, "name", None) not in left_out]
        found[file] = f"{file.name}@{content_hash(ast.dump(tree))}"
        root = file.parents[len(package.split(".")) if package else 0]
        imported = (_find_module(each, root) for each in sorted(_imported(tree, package)))
        modules += [each for each in imported if each and each[2].is_relative_to(root)]
    return sorted(found.values())


def _imported(tree: ast.Module, package: str) -> set[str]:
    """The names that import statements may mean a module by, also where they take constants of it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, (parent, node.module)))
            names |= {origin, *(f"{origin}.{each.name}" for each in node.names)}
    return names


def _find_module(name: str, root: Path | None = None) -> tuple[str, str, Path] | None:
    """Name, package and file of a module; with `root` also of one below it that no import statement has reached yet,
    such as one in a function's body. Runs nothing."""
    if (module := sys.modules.get(name)) is not None:
        file: str | None = getattr(module, "__file__", None)
        return (name, module.__package__ or "", Path(file)) if file else None
    place = None if root is None else root.joinpath(*name.split("."))
    if place is not None and (place / "__init__.py").is_file():
        return name, name, place / "__init__.py"
    if place is not None and (file_of := place.parent / f"{place.name}.py").is_file():
        return name, name.rpartition(".")[0], file_of
    return None


def source_hash(function: Callable[..., Any] | None) -> str | None:
    """Hash of a function's source, without comments and layout; of one without source its name."""
    if function is None:
        return None
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return getattr(function, "__qualname__", type(function).__qualname__)
    try:
        return content_hash(ast.dump(ast.parse(source)))
    except SyntaxError:  # a lambda's lines are part of a call
        return content_hash(source.strip())


def _identities(tasks: Sequence[Task]) -> list[str] | dict[str, Any]:
    told = _told(tasks)
    named = [f"{each.id}@{content_hash(json.dumps([each.user, each.data], sort_keys=True))}" for each in told]
    if isinstance(tasks, DrawnTasks):
        return {"tasks": len(tasks), "numbers": content_hash(repr(tasks.numbers)), "first": named}
    if len(named) <= MOST_TASKS:
        return named
    by_name, by_place = (content_hash("\n".join(each)) for each in (sorted(named), named))
    return {"tasks": len(named), "hash": by_name, "order": by_place}


def _told(tasks: Sequence[Task]) -> Sequence[Task]:
    """The tasks that are looked at: the first of those that one function draws by their numbers, slowly."""
    return tasks[:FIRST_DRAWN] if isinstance(tasks, DrawnTasks) else tasks
