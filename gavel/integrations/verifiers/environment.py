"""A scenario as a taskset and a harness of verifiers.

    Tasks, Agent = verifiers_environment("returns_desk")        # in a module of their own, which exports both
    __all__ = ["Tasks", "Agent"]

The harness plays the scenario's own rollout against the endpoint that verifiers gives it, so tools, worlds and limits
are those of the scenario. The reward is its hand reward, or else success; success and the measures are metrics. An
episode that failed has an error, and no reward. Each task carries the judge's information, which `verifiers:` reads.

`write_package` writes such a module as an installable package:

desk/pyproject.toml
desk/gavel_returns_desk.py        Tasks, Agent = verifiers_environment("returns_desk")
desk/own_scenario.py              a copy, where the scenario is a file of the user's
"""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from gavel.base.errors import GavelError
from gavel.prompts import render
from gavel.scenarios.packaged_world import installed
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, ScenarioError, Split, find_scenario
from gavel.scenarios.stepped_episode import outcome
from gavel.scenarios.truth import Truth
from gavel.trainer.model import Model

_SPLITS: Mapping[str, Split] = {"train": "train", "test": "held_out"}
_INFO = "gavel"


def verifiers_environment(scenario: Scenario | str) -> tuple[type, type]:
    """Creates the classes of a taskset and a harness; a scenario by name or address is looked up when tasks are loaded.

    The taskset's settings choose the split: `--env.taskset.split test`. Raises `ScenarioError` without verifiers.
    """
    v1: Any = installed("verifiers.v1", "verifiers", "an environment of verifiers")
    runtimes: Any = installed("verifiers.v1.runtimes", "verifiers", "an environment of verifiers")

    @functools.cache
    def found() -> Scenario:
        return find_scenario(scenario) if isinstance(scenario, str) else scenario

    class ScenarioData(v1.TaskData):
        split: str = "train"
        index: int = 0
        answer: str | None = None
        gavel: dict[str, Any] = {}  # noqa: RUF012 -- of a pydantic model

    class ScenarioTask(v1.Task[ScenarioData, v1.State, v1.TaskConfig]):
        @property
        def key(self) -> str:
            return f"{self.data.split}/{self.data.id}"

        @v1.reward
        async def outcome(self, trace: Any) -> float:
            told = trace.info[_INFO]
            return float(told.get("hand_reward", told.get("success", 0.0)))

        @v1.metric
        async def measures(self, trace: Any) -> dict[str, float]:
            return {name: float(value) for name, value in trace.info[_INFO].items()}

    class ScenarioTasksetConfig(v1.TasksetConfig):
        split: Literal["train", "test"] = "train"

    class Tasks(v1.Taskset[ScenarioTask, ScenarioTasksetConfig]):
        def load(self) -> Iterator[Any]:
            split: str = self.config.split
            own = found()
            for index, task in enumerate(own.tasks(_SPLITS[str(split)])):
                told = task.truth
                data = ScenarioData(
                    id=task.id,
                    prompt=task.user or None,
                    split=split,
                    index=index,
                    answer=task.reference,
                    gavel=Truth(told.rubric or own.rubric or None, told.reference, told.criteria).dump(),
                )
                yield ScenarioTask(data, self.config.task)

    class Agent(v1.Harness[v1.HarnessConfig]):
        EXECUTES_CODE = NEEDS_CONTAINER = False
        APPENDS_SYSTEM_PROMPT = True

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            own = found()
            task = own.tasks(_SPLITS[str(data.split)])[int(data.index)]
            model = Model(
                name="policy",
                project="verifiers",
                inference_model_name=str(ctx.model),
                inference_base_url=endpoint,
                inference_api_key=secret,
            )
            try:
                played = await rollout(model, own, task)
            finally:
                await model.openai_client().close()
            if played.status == "failed":
                return runtimes.ProgramResult(1, "", played.status_reason or "the rollout failed")
            trace.info[_INFO] = outcome(own, played)
            if played.status == "truncated":
                trace.stop("max_turns")
            return runtimes.ProgramResult(0, "", "")

    for each in (Tasks, Agent):
        each.__qualname__ = each.__name__
    return Tasks, Agent


class PackageError(GavelError):
    """A package cannot be written."""


def write_package(reference: str, folder: Path) -> str:
    """Writes the package; returns the id by which verifiers loads it.

    Raises `ScenarioError` for a scenario that is unknown or has no reward, `PackageError` for a folder in use.
    """
    scenario = find_scenario(reference)
    if scenario.success is None and scenario.hand_reward is None:
        raise ScenarioError(
            f"the scenario {scenario.name} tells neither success nor a hand reward, so its episodes have no reward",
            "Give it success= or hand_reward=; a judge scores episodes there by gavel.integrations.verifiers.finalize.",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PackageError(f"{folder} is not empty", "Name a folder that is not there yet.")
    name = re.sub(r"\W+", "_", scenario.name).strip("_").lower()
    module = f"gavel_{name}"
    path, _, variable = reference.partition(":")
    copied = f"{module}_scenario.py" if path.endswith(".py") else None
    folder.mkdir(parents=True, exist_ok=True)
    if copied is not None:
        (folder / copied).write_text(Path(path).read_text("utf-8"), "utf-8")
    values = {
        "module": module,
        "modules": [module, *([copied.removesuffix(".py")] if copied else [])],
        "project": module.replace("_", "-"),
        "copied": copied,
        "variable": variable,
        "reference": reference,
    }
    (folder / f"{module}.py").write_text(render("verifiers/module.j2", **values), "utf-8")
    (folder / "pyproject.toml").write_text(render("verifiers/pyproject.j2", **values), "utf-8")
    return module.replace("_", "-")
