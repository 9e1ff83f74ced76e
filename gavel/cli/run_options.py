"""The options of a training run: which field of `RunConfig` each sets, and how they override a file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gavel.cli.model_options import Flag, OptionError, given, parse_assignments
from gavel.cli.run_file import Table, Where, merged, read_tables, validated
from gavel.cli.run_paths import paths_beside
from gavel.cli.settings import STAND_IN
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.providers import model_id
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.recipes import RecipeName, recipe_tables
from gavel.trainer.run_config import EvolveRunConfig, RunConfig, engine_table, with_loss_kind

Run = TypeVar("Run", RunConfig, EvolveRunConfig)

JUDGE_FLAGS = [  # of a JudgeConfig
    Flag("models", "--judge"),
    Flag("rubric", "--rubric"),
    Flag("orders", "--orders"),
    Flag("mode", "--mode"),
    Flag("unseen", "--unseen"),
    Flag("alone", "--alone"),
    Flag("images", "--images"),
    Flag("redact", "--redact"),
    Flag("cache", "--cache"),
    Flag("max_cost_usd", "--max-cost"),
    Flag("max_tokens", "--max-judge-tokens"),
    Flag("concurrency", "--judge-concurrency"),
    Flag("params", "--judge-param", by_key=True),
    Flag("cassette", "--cassette"),
]
MODEL_FLAGS = [
    Flag("model.base_model", "--model"),
    Flag("model.name", "--name"),
    Flag("model.renderer", "--renderer"),
    Flag("model.policy.chat_template_kwargs", "--chat-template-kwarg", by_key=True),
]
ENGINE_FLAGS = [
    Flag("loop.max_tokens", "--max-tokens"),
    Flag("loop.seed", "--seed"),
    Flag("backend.max_context", "--max-context"),
    Flag("backend.engine", "--engine"),
    Flag("backend.engine.urls", "--vllm-url"),
    Flag("backend.engine.replicas", "--vllm-replicas"),
    Flag("backend.url", "--backend-url"),
]
START_FLAG = Flag("model.from_checkpoint", "--from-checkpoint")
LORA_FLAGS = [
    Flag("model.lora.rank", "--lora-rank"),
    Flag("model.lora.alpha", "--lora-alpha"),
    Flag("model.lora.rslora", "--rslora"),
    Flag("model.lora.targets", "--lora-target", "all linear layers"),
    Flag("model.lora.experts", "--lora-experts"),
    Flag("model.lora.dropout", "--lora-dropout"),
    Flag("model.policy.quantization", "--quantization"),
]
MEMORY_FLAGS = [
    Flag("train.micro_batch_tokens", "--micro-batch-tokens"),
    Flag("train.gradient_checkpointing", "--gradient-checkpointing"),
]
RUN_FLAGS = [
    *MODEL_FLAGS,
    START_FLAG,
    *LORA_FLAGS,
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS),
    Flag("weights", "--weights"),
    Flag("loop.turn_limits", "--turn-limits"),
    Flag("loop.reward", "--reward", "judge=1"),
    Flag("loop.steps", "--steps"),
    Flag("loop.tasks_per_step", "--tasks"),
    Flag("loop.group_size", "--group-size"),
    Flag("loop.evaluation_tasks", "--evaluation-tasks"),
    Flag("loop.max_staleness", "--max-staleness"),
    Flag("loop.refill", "--refill"),
    Flag("loop.stall_seconds", "--stall-seconds"),
    Flag("loop.on_alarm", "--on-alarm"),
    Flag("loop.checks.every", "--check-judge-every"),
    Flag("loop.checks.golden", "--golden"),
    Flag("loop.checks.second", "--second-judge"),
    Flag("train.learning_rate", "--learning-rate", "1e-5; 2e-3 for an embedded model"),
    Flag("train.loss.kind", "--loss", "grpo"),
    Flag("train.optimizer", "--optimizer"),
    Flag("train.advantage", "--advantage"),
    Flag("train.minimal_spread", "--minimal-spread"),
    Flag("train.top_entropy", "--top-entropy"),
    Flag("train.entropy_bonus", "--entropy-bonus"),
    Flag("train.beta", "--beta"),
    Flag("train.kl_in_reward", "--kl-in-reward"),
    Flag("train.reference", "--reference"),
    *MEMORY_FLAGS,
    *ENGINE_FLAGS,
    Flag("backend.processes", "--nproc"),
    Flag("backend.shard_base", "--shard-base"),
    Flag("backend.tracker", "--tracker"),
]

Source = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A shipped scenario, file.py, file.py:variable, several of them with + between, or a run.toml.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its path: --set train.loss.kind=gspo. Repeatable."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the calls, tokens and dollars to expect of the judge; ask nothing.")
]
Recipe = Annotated[
    RecipeName | None,
    typer.Option("--recipe", help="Settings of a published algorithm; other options override them."),
]

_ENGINE = ("backend", "engine")
_SERVERS = {"url", "urls", "replicas"}
"""Settings of the engine that say which servers it is; they replace those that a file names."""


def run_config(
    source: str,
    values: Mapping[str, Any],
    assignments: Sequence[str] | None = None,
    flags: Sequence[Flag] = RUN_FLAGS,
    *,
    recipe: RecipeName | None = None,
    kind: type[Run] = RunConfig,
) -> Run:
    """The run of a `kind` that a scenario or run.toml and the options describe.

    Its judge is that of the environment if none is named.

    Options win over the recipe, and both over the file, whose relative paths are those beside it. Raises a `GavelError`
    that names the option, or the file and line, of a wrong value.
    """
    tables, where = {"scenario": source}, Where()
    if source.endswith(".toml"):
        tables, where = read_tables(Path(source))
        tables = paths_beside(tables, Path(source).parent)
    if recipe is not None:
        settings = recipe_tables(recipe)
        tables, where = merged(tables, settings), where | dict.fromkeys(settings, "--recipe")
    chosen = given(values, kind, flags)
    assigned = parse_assignments(assignments or ())
    names = {tuple(flag.path.split(".")): flag.name for flag in flags}
    names = {path: names.get(path) or names[path[:-1]] for path in chosen}
    names |= {path: f"--set {'.'.join(path)}" for path in assigned}
    where |= names | dict.fromkeys(assigned, "--set")
    typed = _engine_in_parts(tables, chosen | assigned)
    _check_no_parts_of_values(typed, names)
    config = validated(kind, merged(with_loss_kind(tables), typed), where)
    return config.model_copy(update={"judge": with_default_judge(config.judge)})


def _engine_in_parts(tables: Table, typed: Mapping[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """The values, with the engine that is typed, or that of the file, as a table where settings of it are typed too."""
    parts = {path[-1] for path in typed if path[:-1] == _ENGINE}
    if not parts:
        return dict(typed)
    if _ENGINE in typed:
        return {**typed, _ENGINE: engine_table(typed[_ENGINE])}
    engine = tables.get("backend", {}).get("engine")
    if isinstance(engine, str) and isinstance(table := engine_table(engine), dict) and not parts & _SERVERS:
        return {**typed, _ENGINE: table}
    return dict(typed)


def _check_no_parts_of_values(typed: Mapping[tuple[str, ...], Any], names: Mapping[tuple[str, ...], str]) -> None:
    """Raises `OptionError` where a value and a setting in it are typed, of which one would be dropped."""
    for path in typed:
        for whole in (path[:count] for count in range(1, len(path))):
            if whole in typed and not isinstance(typed[whole], dict):
                raise OptionError(
                    f"{names[whole]} is {typed[whole]}, which has no {'.'.join(path[len(whole) :])} for {names[path]}.",
                    f"Leave out {names[whole]} or {names[path]}.",
                )


def judge_config(values: Mapping[str, Any]) -> JudgeConfig:
    """The judge that the options of `JUDGE_FLAGS` describe."""
    chosen = given(values, JudgeConfig, JUDGE_FLAGS)
    where = {(flag.path,): flag.name for flag in JUDGE_FLAGS}
    return with_default_judge(validated(JudgeConfig, merged({}, chosen), where))


def with_default_judge(judge: JudgeConfig) -> JudgeConfig:
    """The same, with `GAVEL_JUDGE_MODEL` or else the stand-in where no model is named."""
    if judge.models is not None:
        return judge
    return judge.model_copy(update={"models": os.environ.get("GAVEL_JUDGE_MODEL", "").strip() or STAND_IN})


def announce_stand_in(names: Sequence[str]) -> None:
    """Says on stderr that the stand-in is the judge, if it is, and which judge model a key that is set makes usable."""
    if model_id(STAND_IN) not in names:
        return
    key = next((key for key in _JUDGE_BY_KEY if os.environ.get(key)), "")
    other = f"{key} is set: --judge {_JUDGE_BY_KEY[key]} asks a language model." if key else "--judge names another."
    typer.echo(f"The judge is the stand-in: it checks written rules only, and reads no answers. {other}", err=True)


def check_stand_in(judge: Judge, scenario: Scenario | Mixture) -> None:
    """Raises `JudgeError` if the stand-in is a judge and does not read all of the rubric of every task.

    What it does not read would be rewarded without a look.
    """
    if model_id(STAND_IN) not in judge.names:
        return
    from gavel.trainer.loop.experiment import judges_of

    mixture = Mixture.of(scenario)
    judges = judges_of(mixture, judge)
    for each in mixture:
        tasks = [*each.tasks("train"), *each.tasks("held_out")]
        check_readable(judges[each.name].rubric, [task.truth for task in tasks], declared=each.tool_names)


_JUDGE_BY_KEY = {
    "OPENAI_API_KEY": "openai/gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini/gemini-2.5-flash",
    "MISTRAL_API_KEY": "mistral/mistral-medium-latest",
}
"""A judge model of each of the providers whose keys people have."""
