"""Command-line options made from the fields of a settings model, and those of judges and runs.

    FLAGS = [Flag("judge.orders", "--orders")]
    app = settings_command(function, RunConfig, FLAGS)

Type, range, choices, help and default of `--orders` are those of `RunConfig.judge.orders`. An option that is not given
leaves no value, so that `given` holds what the user typed and nothing else.
"""

import inspect
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.lazy_commands import single_command
from gavel.cli.run_file import SHOW, Settings, Table, Where, merge, models_in, paths_beside, read_tables, validate
from gavel.cli.terminal import say
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.offline.stand_in import check_readable
from gavel.judge.panel.juror import jury
from gavel.llm.budget import Budget
from gavel.llm.providers import is_local, model_id, register
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import RecipeName, recipe_tables
from gavel.trainer.embedded import SCENARIOS, TOOL_CALLER
from gavel.trainer.loop.experiment import judges_of
from gavel.trainer.run_config import EvolveRunConfig, ModelConfig, RunConfig, engine_table, with_loss_kind

if TYPE_CHECKING:
    from gavel.trainer.loop.likelihood_judge import LikelihoodJudge

STAND_IN = "stand-in"
"""The command line's default judge: rules, no key."""
LIKELIHOOD = "likelihood"
"""The judge of `gavel demo --real`: likelihoods under the frozen base, with which it is registered when it is asked."""


@dataclass(frozen=True, slots=True)
class Flag:
    """An option that sets one field."""

    path: str
    """The field's path: `judge.orders`."""
    name: str
    """The option's name: `--orders`."""
    default: object = None
    """The default shown by the help, if it differs from the field's own."""

    by_key: bool = False
    """For a table: whether each key=value sets one key and leaves the others; else the option is the whole table."""

    @property
    def key(self) -> str:
        """The name of the parameter that receives the value."""
        return self.name.lstrip("-").replace("-", "_")


def flags_of(table: str, *fields: str) -> list[Flag]:
    """Options of the fields of a table, each named after its field: `steps` is --steps; or `tasks_per_step=--tasks`."""
    named = [field.partition("=") for field in fields]
    return [Flag(f"{table}.{field}".lstrip("."), name or f"--{field.replace('_', '-')}") for field, _, name in named]


class OptionError(GavelError):
    """An option's value cannot be read."""


def with_options(function: Callable[..., None], model: type[BaseModel], flags: Sequence[Flag]) -> Callable[..., None]:
    """The function with the options that its parameter `values` receives, as a mapping, instead of that parameter."""

    def command(**arguments: Any) -> None:
        own = {name: value for name, value in arguments.items() if name not in keys}
        function(**own, values={name: arguments[name] for name in keys})

    keys = {flag.key for flag in flags}
    signature = inspect.signature(function)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "values"]
    parameters += [_parameter(model, flag) for flag in flags]
    command.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return command


def settings_command(function: Callable[..., None], model: type[BaseModel], flags: Sequence[Flag]) -> typer.Typer:
    """The `app` of a module with one command, which has these options."""
    return single_command(with_options(function, model, flags))


def given(values: Mapping[str, Any], model: type[BaseModel], flags: Sequence[Flag]) -> dict[tuple[str, ...], Any]:
    """The values that the user typed, by the field's path."""
    found: dict[tuple[str, ...], Any] = {}
    for flag in flags:
        value = values.get(flag.key)
        if value is None or value == []:
            continue
        path = tuple(flag.path.split("."))
        if _base_type(_field(model, flag.path)[0]) is not dict:
            found[path] = value
            continue
        texts = [text for item in value for text in ([item] if set("{[") & set(item) else item.split(","))]
        pairs = read_pairs(flag.name, texts)
        found |= {(*path, key): item for key, item in pairs.items()} if flag.by_key else {path: pairs}
    return found


def _option_names(paths: Iterable[tuple[str, ...]], flags: Sequence[Flag]) -> Where:
    names = {tuple(flag.path.split(".")): flag.name for flag in flags}
    return {path: names.get(path) or names[path[:-1]] for path in paths}


def read_settings(
    model: type[Settings],
    values: Mapping[str, Any],
    flags: Sequence[Flag],
    tables: Table | None = None,
    where: Where | None = None,
    show: str = SHOW,
) -> Settings:
    """The settings of the options, which win over those of `tables`. Raises a `GavelError` that names the option."""
    chosen = given(values, model, flags)
    return validate(model, merge(tables or {}, chosen), (where or {}) | _option_names(chosen, flags), show)


def parse_assignments(assignments: Sequence[str]) -> dict[tuple[str, ...], Any]:
    """The values by path of `--set train.loss.kind=gspo`; a value is parsed as TOML or JSON, else taken as text.

    Raises `OptionError` for a key that is given twice.
    """
    return {tuple(key.split(".")): value for key, value in read_pairs("--set", assignments).items()}


def read_pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """The values of `--option key=value`, given several times, by key. Raises `OptionError`."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise OptionError(f"{option} {text}: this is not of the form key=value.", f"Write {option} key=value.")
        if key in pairs:
            raise OptionError(f"{option} names {key} twice.", "Give each key once.")
        pairs[key] = _parse(value)
    return pairs


def _parse(text: str) -> Any:
    """TOML or JSON where it is either, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _parameter(model: type[BaseModel], flag: Flag) -> inspect.Parameter:
    annotation, field = _field(model, flag.path)
    base = _base_type(annotation)
    limits = {type(limit): limit for limit in field.metadata}
    low, high = limits.get(Ge), limits.get(Le)
    numeric = base in (int, float)
    whole = flag.path.rpartition(".")[0]
    tables = (whole, whole.partition(".")[0]) if whole else (model.__name__.removesuffix("Config").lower(),)
    option = typer.Option(
        f"{flag.name}/--no-{flag.name.removeprefix('--')}" if base is bool else flag.name,
        help=_help(model, field, flag),
        show_default=False,
        min=low.ge if numeric and low else None,  # pyright: ignore[reportArgumentType]
        max=high.le if numeric and high else None,  # pyright: ignore[reportArgumentType]
        metavar="KEY=VALUE" if base is dict else None,
        rich_help_panel=next((_GROUPS[table] for table in tables if table in _GROUPS), None),
    )
    kind: Any = list[str] if base is dict or get_origin(annotation) in (list, tuple) else base
    return inspect.Parameter(
        flag.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


_GROUPS = {
    "model": "Model",
    "model.lora": "Adapter",
    "judge": "Judge",
    "loop": "Rollouts and evaluation",
    "evolve": "Rounds",
    "choose": "What is imitated",
    "train": "Learning",
    "backend": "Where it runs",
}
"""Titles of the tables of settings, in a run or by themselves."""


def _help(model: type[BaseModel], field: FieldInfo, flag: Flag) -> str:
    """The field's description, else that of its table, and the default unless the description names one."""
    description = field.description
    if not description and "." in flag.path:
        description = _field(model, flag.path.rpartition(".")[0])[1].description
    text = " ".join((description or "").split())
    default = flag.default if flag.default is not None else field.get_default(call_default_factory=True)
    if default in (None, PydanticUndefined, {}, ()) or isinstance(default, bool) or "Default" in text:
        return text
    return f"{text} Default: {default}.".strip()


def _field(model: type[BaseModel], path: str) -> tuple[Any, FieldInfo]:
    """The annotation and the field at `path`; a choice between models offers the fields of all of them."""
    name, _, rest = path.partition(".")
    field = model.model_fields[name]
    if not rest:
        return field.annotation, field
    members = [member for member in models_in(field.annotation) if rest.partition(".")[0] in member.model_fields]
    found = [_field(member, rest) for member in members]
    return Union[tuple(annotation for annotation, _ in found)], found[0][1]  # noqa: UP007 - of a computed tuple


def _base_type(annotation: Any) -> Any:
    """The option's type: bool, int, float, a choice of literals, dict (key=value pairs), else str."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    members = [get_args(member)[0] if get_origin(member) is Annotated else member for member in members]
    members = [member for member in members if member is not type(None) and get_origin(member) is not Callable]
    literals = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if literals and len(literals) >= len(members) and all(get_origin(member) is Literal for member in members):
        return Literal[tuple(dict.fromkeys(literals))]
    if len(members) == 1 and (get_origin(members[0]) or members[0]) in (bool, int, float, dict, Path):
        return get_origin(members[0]) or members[0]
    return str


Run = TypeVar("Run", RunConfig, EvolveRunConfig)

JUDGE_PARAMS = [Flag("params", "--judge-param", by_key=True)]
JUDGE_FLAGS = [  # of a JudgeConfig
    *flags_of(
        "", "models=--judge", "rubric", "orders", "states", "mode", "unseen", "alone", "images", "redact", "cache"
    ),
    *flags_of("", "max_cost_usd=--max-cost", "max_tokens=--max-judge-tokens", "concurrency=--judge-concurrency"),
    *JUDGE_PARAMS,
    Flag("cassette", "--cassette"),
]
RUN_JUDGE_FLAGS = [replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS]
MODEL_FLAGS = [
    *flags_of("model", "base_model=--model", "name", "renderer"),
    Flag("model.policy.chat_template_kwargs", "--chat-template-kwarg", by_key=True),
]
ENGINE_FLAGS = [
    *flags_of("loop", "max_tokens", "seed"),
    *flags_of("backend", "max_context", "engine", "engine.urls=--vllm-url", "engine.replicas=--vllm-replicas"),
    Flag("backend.url", "--backend-url"),
]
LORA_FLAGS = [
    *flags_of("model.lora", "rank=--lora-rank", "alpha=--lora-alpha", "rslora"),
    Flag("model.lora.targets", "--lora-target", "all linear layers"),
    *flags_of("model.lora", "experts=--lora-experts", "dropout=--lora-dropout"),
    Flag("model.policy.quantization", "--quantization"),
]
RUN_FLAGS = [
    *MODEL_FLAGS,
    Flag("model.from_checkpoint", "--from-checkpoint"),
    *LORA_FLAGS,
    *RUN_JUDGE_FLAGS,
    Flag("weights", "--weights"),
    Flag("loop.turn_limits", "--turn-limits"),
    Flag("loop.reward", "--reward", "judge=1"),
    *flags_of("loop", "steps", "tasks_per_step=--tasks", "group_size", "evaluation_tasks", "max_staleness", "refill"),
    *flags_of("loop", "stall_seconds", "on_alarm", "checks.every=--check-judge-every", "checks.golden=--golden"),
    Flag("loop.checks.second", "--second-judge"),
    Flag("train.learning_rate", "--learning-rate", "1e-5; 2e-3 for an embedded model"),
    Flag("train.loss.kind", "--loss", "grpo"),
    *flags_of("train", "advantage", "minimal_spread", "top_entropy", "entropy_bonus", "beta"),
    *flags_of("train", "kl_in_reward", "reference", "micro_batch_tokens", "gradient_checkpointing"),
    *ENGINE_FLAGS,
    *flags_of("backend", "processes=--nproc", "shard_base", "tracker"),
]
_SETS = {
    **{flag.name: [flag] for flag in RUN_FLAGS},
    **{flag.name: [flag] for flag in flags_of("loop", "temperature", "concurrency", "final_tasks", "evaluate_every")},
    "--slots": flags_of("backend", "slots"),
    **{"model": MODEL_FLAGS, "lora": LORA_FLAGS, "judge": RUN_JUDGE_FLAGS, "engine": ENGINE_FLAGS},
}


def run_flags(*names: str, without: str = "") -> list[Flag]:
    """Options of a run: by their names, or all of `model`, `lora`, `judge` or `engine`, `without` one."""
    return [flag for name in names for flag in _SETS[name] if flag.name != without]


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
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the calls, tokens and dollars to expect; ask nothing.")]
Recipe = Annotated[
    RecipeName | None,
    typer.Option("--recipe", help="Settings of a published algorithm; other options override them."),
]

_ENGINE = ("backend", "engine")
_SERVERS = {"urls", "replicas"}
"""Settings of the engine that say which servers it is; they replace those that a file names."""


def run_config(
    source: str,
    values: Mapping[str, Any],
    assignments: Sequence[str] | None = None,
    flags: Sequence[Flag] = RUN_FLAGS,
    *,
    recipe: RecipeName | None = None,
    kind: type[Run] = RunConfig,
    base: Mapping[str, Table] | None = None,
) -> Run:
    """The run of a `kind` that a scenario or run.toml and the options describe.

    Its judge is that of the environment if none is named.

    Options win over the recipe, both over the file, whose relative paths are those beside it, and all over the tables
    of `base`. Raises a `GavelError` that names the option, or the file and line, of a wrong value.
    """
    tables: Table = {"scenario": source}
    where = Where()
    if source.endswith(".toml"):
        tables, where = read_tables(Path(source))
        tables = paths_beside(tables, Path(source).parent)
    for name, table in (base or {}).items():
        own = tables.get(name, {})
        tables[name] = {**table, **own} if isinstance(own, dict) else own
    if recipe is not None:
        settings = recipe_tables(recipe)
        tables, where = merge(tables, settings), where | dict.fromkeys(settings, "--recipe")
    chosen = given(values, kind, flags)
    assigned = parse_assignments(assignments or ())
    names = _option_names(chosen, flags) | {path: f"--set {'.'.join(path)}" for path in assigned}
    where |= names | dict.fromkeys(assigned, "--set")
    typed = chosen | assigned
    parts = {path[-1] for path in typed if path[:-1] == _ENGINE}
    engine = typed.get(_ENGINE, tables.get("backend", {}).get("engine"))
    if parts and isinstance(engine, str):  # a table, in which the others are set
        table = engine_table(engine)
        if _ENGINE in typed or (isinstance(table, dict) and not parts & _SERVERS):
            typed[_ENGINE] = table
    _check_no_parts_of_values(typed, names)
    config = validate(kind, merge(with_loss_kind(tables), typed), where)
    return config.model_copy(update={"judge": with_default_judge(config.judge)})


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
    return with_default_judge(read_settings(JudgeConfig, values, JUDGE_FLAGS))


def default_judge() -> str:
    """The judge model to use when none is named: that of `GAVEL_JUDGE_MODEL`, or else the stand-in."""
    return os.environ.get("GAVEL_JUDGE_MODEL", "").strip() or STAND_IN


def with_default_judge(judge: JudgeConfig) -> JudgeConfig:
    """The same, with the default judge where no model is named."""
    return judge if judge.models is not None else judge.model_copy(update={"models": default_judge()})


def prepare_judge(
    settings: JudgeConfig, scenario: Scenario | Mixture, directory: Path | None = None, budget: Budget | None = None
) -> Judge:
    """The judge of a scenario's attempts, checked and announced; one that costs money keeps its replies in
    `directory`."""
    settings = settings if directory is None else with_cassette(settings, directory)
    judge = settings.build(scenario.rubric, budget=budget)
    announce_stand_in(judge.names)
    check_stand_in(judge, scenario)
    return judge


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


FILE_NAME = "cassettes.sqlite"


def with_cassette(judge: JudgeConfig, directory: Path) -> JudgeConfig:
    """The same, with the cassette of `directory` where none is named and a model costs money."""
    named = jury(judge.models) if judge.models else ()
    models = [model for juror in named for model in juror.models if isinstance(model, str)]
    if judge.cassette is not None or all(map(is_local, models)):
        return judge
    return judge.model_copy(update={"cassette": directory / FILE_NAME})


def replies_directory(out: Path | None) -> Path:
    """The directory of the replies behind an output: beside a file, or among the runs for standard output."""
    is_stream = out is None or str(out) == "-" or out.is_relative_to("/dev") or (out.exists() and not out.is_file())
    if out is None or is_stream:
        return Path(os.environ.get("GAVEL_RUNS") or "runs")
    return out.parent


def close_replies(console: Console, judge: Judge) -> None:
    """Says how many replies were replayed (`12 replies replayed from runs/demo/x/cassettes.sqlite`), and closes the
    cassette."""
    if (cassette := judge.cassette) is not None:
        if cassette.replayed:
            say(console, f"{counted(cassette.replayed, 'reply')} replayed from {cassette.path or 'the cassette'}")
        cassette.close()


@cache
def _likelihood() -> "LikelihoodJudge":
    from gavel.trainer.loop.likelihood_judge import load_judge

    return load_judge(partial(typer.echo, err=True))


register(LIKELIHOOD, lambda messages: _likelihood().reply(messages))


class ModelChoiceError(GavelError):
    """No base model is named for a scenario that the default one does not fit."""


def check_model(
    model: ModelConfig, scenario: Scenario | Mixture, else_: str = "its scores may rise while it learns nothing"
) -> None:
    """Raises `ModelChoiceError` where a built-in model would be used, unasked, on a job that it was not made for.

    A user who named it gets a note instead, which says what comes of it: `else_`.
    """
    base = model.base_model
    its_own = SCENARIOS.get(base)
    others = [each.name for each in Mixture.of(scenario) if each.name != its_own]
    if its_own is None or not others:
        return
    what = f"the built-in model {base} knows the scenario {its_own} alone"
    if "base_model" in model.model_fields_set:
        typer.echo(f"Note: {what}; on {', '.join(others)} {else_}.", err=True)
        return
    own = [name for name, its in SCENARIOS.items() if its == scenario.name]
    made = f"--model {own[0]}, a tiny one made for this scenario; " if own else ""
    raise ModelChoiceError(
        f"{what}, and {others[0]} is another job.",
        f"Name a base model: {made}--model {TOOL_CALLER}, a tiny one that calls any scenario's tools and "
        "learns in minutes on a CPU; --model smollm2-135m, a small real one for a CPU (`make real` fetches it); on a "
        "GPU of 8 GiB --model Qwen/Qwen3-1.7B, of 24 GiB Qwen/Qwen3-4B, of 48 GiB Qwen/Qwen3-8B. `gavel plan MODEL` "
        "shows what another needs of memory, and --dry-run what the judge will cost.",
    )
