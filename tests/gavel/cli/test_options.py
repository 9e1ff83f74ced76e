"""Options, run.toml and the environment make one configuration; a wrong value is named with where it was set."""

import itertools
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from rich.console import Console
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli import compare, demo, demo_session, evaluate, score, train
from gavel.cli.app import SettingsError, load_dotenv
from gavel.cli.config import app
from gavel.cli.demo import LIKELIHOOD
from gavel.cli.options import ModelChoiceError, check_model, default_judge, register_likelihood, run_config
from gavel.cli.run_file import RunFileError, paths_beside, paths_seen_from, read_tables, to_toml
from gavel.llm import providers
from gavel.llm.prices import prices_from_environment
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.config import Cispo, ClippedSurrogate, Gspo, VllmSettings, recipe
from gavel.trainer.embedded import SCENARIOS
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root
from gavel.trainer.runs.trackers import wandb_mode
from tests.endpoint import Endpoint
from tests.vendors import PERMANENT


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(
        'scenario = "returns_desk"\n'
        "[judge]\norders = 4\nmax_cost_usd = 0.5\n"
        "[train]\nadvantage = 'rank'\n"
        "[train.loss]\nkind = 'cispo'\nratio_cap = 4.0\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"vllm_url": ["http://gpu-1:8000", "http://gpu-2:8000"]}, {"urls": "http://gpu-1:8000,http://gpu-2:8000"}),
        ({"vllm_url": ["http://gpu-1:8000, http://gpu-2:8000"]}, {"urls": "http://gpu-1:8000,http://gpu-2:8000"}),
        ({"engine": "http://gpu-1:8000,http://gpu-2:8000"}, {"urls": "http://gpu-1:8000,http://gpu-2:8000"}),
        ({"engine": "http://gpu-1:8000"}, {"url": "http://gpu-1:8000"}),
        ({"vllm_replicas": 2}, {"replicas": 2}),
        ({"vllm_replicas": 2, "engine": "vllm"}, {"replicas": 2}),
    ],
)
def test_servers_of_vllm_are_chosen_by_number_or_addresses(options: dict, settings: dict) -> None:
    assert run_config("returns_desk", options).backend.engine == VllmSettings(**settings)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"vllm_url": ["gpu-1:8000"]}, r"--vllm-url: .*should match"),
        ({"vllm_url": ["http://gpu-1", "http://gpu-1/v1/"]}, r"--vllm-url: .*names a server twice"),
        ({"vllm_url": ["http://gpu-1"], "vllm_replicas": 2}, r"--vllm-replicas: .*addresses of servers that run"),
        ({"engine": "transformers", "vllm_replicas": 2}, r"--engine is transformers, .* replicas for --vllm-replicas"),
        ({"engine": "http://gpu-1", "vllm_replicas": 2}, r"--vllm-replicas: .*addresses of servers that run"),
    ],
)
def test_samplers_that_cannot_be_are_refused_naming_the_option(options: dict, told: str) -> None:
    with pytest.raises(GavelError, match=told):
        run_config("returns_desk", options)


def test_an_unknown_engine_is_refused_naming_the_known_ones() -> None:
    with pytest.raises(RunFileError, match=r"--engine: .*'sglang'.* transformers, vllm"):
        run_config("returns_desk", {"engine": "sglang"})


def test_a_scenario_alone_gets_the_defaults_that_follow_from_its_model() -> None:
    config = run_config("returns_desk", {"steps": 2}).resolved()
    assert (config.train.learning_rate, config.train.warmup_steps, config.train.total_steps) == (2e-3, 1, 2)
    assert (config.model.name, config.judge.models, config.loop.final_tasks) == ("returns-desk", "stand-in", 128)
    other = run_config("returns_desk", {"model": "Qwen/Qwen3-0.6B", "seed": 3, "evaluation_tasks": 8}).resolved()
    assert (other.train.learning_rate, other.model.name, other.judge.seed) == (1e-5, "qwen3-0.6b", 3)
    assert other.loop.final_tasks == 8


def test_a_recipe_overrides_the_file_and_options_override_the_recipe(file: str) -> None:
    train = run_config(file, {}, recipe="dapo").train
    assert (train.advantage, train.loss, train.mask_truncated) == ("std", recipe("dapo").loss, True)
    other = run_config(file, {"loss": "gspo", "beta": 0.1}, recipe="dapo").train
    assert (other.loss, other.beta, other.mask_truncated) == (Gspo(), 0.1, True)


def test_an_option_that_does_not_go_with_a_recipe_says_so() -> None:
    with pytest.raises(RunFileError, match="normalize_over_batch is for losses that compare"):
        run_config("returns_desk", {"loss": "ppo"}, recipe="scalerl")


def test_options_override_single_values_of_a_file(file: str) -> None:
    config = run_config(file, {"orders": 1, "judge_param": ["temperature=0.5,api_base=http://x"]})
    assert (config.judge.orders, config.judge.max_cost_usd, config.train.advantage) == (1, 0.5, "rank")
    assert config.judge.params == {"temperature": 0.5, "api_base": "http://x"}


def test_the_reward_is_a_weighted_sum_of_named_rewards(file: str) -> None:
    assert run_config(file, {}).loop.reward == {"judge": 1.0}
    assert run_config(file, {"reward": ["judge=1,hand=0.5"]}).loop.reward == {"judge": 1.0, "hand": 0.5}
    with pytest.raises(RunFileError, match="--reward: "):
        run_config(file, {"reward": ["juge=1"]})


def test_another_loss_does_not_inherit_the_settings_of_the_files_loss(file: str) -> None:
    assert run_config(file, {"loss": "gspo"}).train.loss == Gspo()
    assert run_config(file, {}, ["train.loss.kind=gspo", "train.loss.clip_high=1e-3"]).train.loss == Gspo(
        clip_high=1e-3
    )


@pytest.mark.parametrize("recipe", [None, "gspo", "cispo"])
@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize(
    "assignments",
    [
        ["train.loss.kind=cispo", "train.loss.ratio_cap=3", "train.loss.aggregation=bnpo"],
        ["train.loss={aggregation='bnpo', kind='cispo'}", "train.loss.ratio_cap=3"],
        ["train.loss={ratio_cap=3, aggregation='bnpo'}", "train.loss.kind=cispo"],
    ],
)
def test_the_order_of_assignments_does_not_matter(file: str, recipe, from_file: bool, assignments: list[str]) -> None:
    source = file if from_file else "returns_desk"
    for order in itertools.permutations(assignments):
        loss = run_config(source, {}, order, recipe=recipe).train.loss
        assert loss == Cispo(ratio_cap=3, aggregation="bnpo")


@pytest.mark.parametrize("recipe", [None, "gspo"])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_setting_that_the_chosen_loss_has_not_is_an_error_that_names_those_it_has(recipe, turn: int) -> None:
    assignments = ["train.loss.clip_low=2", "train.loss.kind=cispo"][::turn]
    with pytest.raises(RunFileError, match=r"--set: \[train.loss\] has no clip_low\.") as error:
        run_config("returns_desk", {}, assignments, recipe=recipe)
    assert error.value.remedy == "With kind cispo there are: aggregation, constant_length, kind, ratio_cap."


def test_the_kind_that_a_loss_has_anyhow_leaves_its_settings(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("scenario = 'returns_desk'\n[train.loss]\nclip_low = 0.1\n")
    for options, assignments in (({"loss": "grpo"}, []), ({}, ["train.loss.kind=grpo"])):
        loss = run_config(str(tmp_path / "run.toml"), options, assignments).train.loss
        assert loss == ClippedSurrogate(clip_low=0.1)


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    ("assignments", "engine"),
    [
        (["backend.engine=vllm", "backend.engine.sleep=true"], VllmSettings(sleep=True)),
        (["backend.engine=http://x", "backend.engine.api_key=k"], VllmSettings(url="http://x", api_key=SecretStr("k"))),
    ],
)
def test_an_engine_and_its_settings_are_assigned_in_any_order(assignments: list[str], engine, turn: int) -> None:
    assert run_config("returns_desk", {}, assignments[::turn]).backend.engine == engine


def test_an_option_and_an_assignment_of_the_engine_go_together(tmp_path: Path) -> None:
    engine = VllmSettings(url="http://x", api_key=SecretStr("k"))
    assert run_config("returns_desk", {"engine": "http://x"}, ["backend.engine.api_key=k"]).backend.engine == engine
    (tmp_path / "run.toml").write_text("scenario = 'returns_desk'\n[backend]\nengine = 'http://x'\n")
    assert run_config(str(tmp_path / "run.toml"), {}, ["backend.engine.api_key=k"]).backend.engine == engine
    assert run_config(str(tmp_path / "run.toml"), {"vllm_replicas": 2}).backend.engine == VllmSettings(replicas=2)


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (["backend.engine=transformers", "backend.engine.sleep=true"], r"--set backend.engine is transformers, which"),
        (["train.beta=0.1", "train.beta.x=1"], r"--set train.beta is 0.1, which has no x for --set train.beta.x"),
        (["train.loss.kind=gspo", "train.loss.kind=cispo"], r"--set names train.loss.kind twice"),
    ],
)
def test_assignments_that_exclude_each_other_are_refused(assignments: list[str], told: str, turn: int) -> None:
    with pytest.raises(GavelError, match=told):
        run_config("returns_desk", {}, assignments[::turn])


def test_a_comparison_keeps_the_settings_of_the_demo_beside_those_that_are_set() -> None:
    base = {"model": {"lora": {"rank": 8}}, "train": {"loss": {"kind": "gspo"}}}
    assignments = ["model.lora.alpha=64", "train.loss.clip_high=0.3", "train.loss.kind=gspo"]
    config = run_config("x", {"engine": "vllm"}, assignments, base=base)
    assert (config.model.lora.rank, config.model.lora.alpha, config.backend.engine) == (8, 64, "vllm")
    assert config.train.loss == Gspo(clip_high=0.3)


def test_the_judge_of_the_environment_is_used_when_none_is_named(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "ollama/qwen3")
    assert run_config(file, {}).judge.models == "ollama/qwen3"
    assert run_config(file, {"judge": "constant"}).judge.models == "constant"


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("scenario = 'x'\n[train]\nlearning_rat = 1\n", r"line 3: \[train\] has no learning_rat\.", "learning_rate?"),
        ("scenario = 'x'\n[trian]\nbeta = 1\n", "line 2: the top of the configuration has no trian", "train?"),
        ("scenario = 'x'\n[train.loss]\nkind = 'gspo'\nclip_hig = 1\n", r"line 4: \[train.loss\] has no", "clip_high?"),
        ("scenario = 'x'\n[judge]\norders = 0\n", r"line 3: judge\.orders: .* not 0", "gavel config"),
        ("[judge]\norders = 1\n", "scenario: field required", "gavel config"),
        ("scenario = 'x'\n[judge\n", "is not TOML", "gavel config"),
    ],
)
def test_a_wrong_key_or_value_of_a_file_is_named_with_its_line(
    tmp_path: Path, text: str, message: str, remedy: str
) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(RunFileError, match=message) as error:
        run_config(str(tmp_path / "run.toml"), {})
    assert remedy in error.value.remedy


def test_a_parameter_of_the_judge_leaves_the_others_of_the_file(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('scenario = "returns_desk"\n[judge]\nparams = {temperature = 0.1, api_base = "http://x"}\n')
    values = {"judge_param": ["temperature=0.5", 'extra_body={"y": 2, "z": [1]}']}
    params = run_config(str(file), values).judge.params
    assert params == {"temperature": 0.5, "api_base": "http://x", "extra_body": {"y": 2, "z": [1]}}


@pytest.mark.parametrize(
    "assignment", ["loop.steps=true", 'loop.steps="3"', 'train.beta="0.1"', "loop.reward.judge=true"]
)
def test_another_type_is_not_taken_for_a_number(assignment: str):
    with pytest.raises(GavelError, match=r"--set: .* should be a number"):
        run_config("returns_desk", {}, [assignment])


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("steeps", "Did you mean steps?"),
        ("see", "Did you mean seed?"),
        ("speedup", "There are: "),
        ("x", "There are: "),
    ],
)
def test_a_setting_is_suggested_only_for_a_name_that_is_much_like_it(written: str, remedy: str):
    with pytest.raises(GavelError) as error:
        run_config("returns_desk", {}, [f"loop.{written}=3"])
    assert error.value.remedy.startswith(remedy)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_as_an_editor_on_windows_saves_it_is_read(tmp_path: Path, encoding: str):
    file = tmp_path / "run.toml"
    file.write_text('scenario = "returns_desk"\r\n[loop]\r\nsteps = 7\r\n', encoding=encoding)
    assert run_config(str(file), {}).loop.steps == 7


def test_models_separated_by_commas_are_a_jury():
    assert run_config("returns_desk", {"judge": "stand-in, constant"}).judge.build().names == [
        "gavel/stand-in",
        "gavel/constant",
    ]


@pytest.mark.parametrize("command", [score, train, compare, demo, evaluate])
def test_the_commands_with_a_judge_take_what_it_may_cost_and_a_dry_run(command):
    options = {name for parameter in get_command(command.app).params for name in parameter.opts}
    wanted = {"--max-cost", "--max-judge-tokens", "--judge-concurrency", "--judge-param", "--dry-run"}
    assert wanted <= options


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(train, ["returns_desk", "--steps", "3", "--tasks", "2", "--group-size", "4"]), (demo, ["--steps", "3"])],
)
def test_a_dry_run_of_a_training_tells_calls_tokens_and_dollars(command, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    dry = [*arguments, "--judge", "openai/gpt-5-mini", "--dry-run"]
    keyless = CliRunner().invoke(command.app, dry)
    assert "USD" in keyless.output
    assert "OPENAI_API_KEY" in str(keyless.exception)  # as the run would say
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    result = CliRunner().invoke(command.app, dry)
    assert result.exit_code == 0, result
    calls = 3 * 2 * 2 if command is train else 3 * 8 * 2
    assert f"{calls} calls, about" in result.output
    assert "USD" in result.output
    assert "Nothing was asked." in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--from-checkpoint", "nobody/nothing"], "nobody/nothing"),
        (["--from-checkpoint", "adapter", "--lora-rank", "3"], "rank 3"),
        (["--model", "empty"], "empty"),
        (["--judge", "nobody/nothing"], "nobody/nothing"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_before_it_prints_anything(options, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8}')
    save_file({}, tmp_path / "adapter" / "adapter_model.safetensors")
    refused = CliRunner().invoke(train.app, ["returns_desk", "--judge", "constant", *options, "--dry-run"])
    assert isinstance(refused.exception, GavelError)
    assert wrong in refused.exception.message
    assert not refused.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "empty"]


def test_a_dry_run_refuses_a_place_where_no_run_can_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path / "file"))
    refused = CliRunner().invoke(train.app, ["returns_desk", "--judge", "constant", "--dry-run"])
    assert isinstance(refused.exception, GavelError)
    assert "GAVEL_RUNS" in refused.exception.remedy
    assert not refused.stdout


def test_a_dry_run_of_a_file_tells_calls_tokens_and_dollars(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": c}]} for c in "abc"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**row, "task": 1}) + "\n" for row in rows))
    arguments = [str(tmp_path / "rows.jsonl"), "--by", "task", "--judge", "openai/gpt-5-mini", "--dry-run"]
    result = CliRunner().invoke(score.app, arguments)
    assert result.exit_code == 0, result
    assert "1 group: 2 calls, about" in result.output


def test_a_training_with_a_wrong_key_ends_before_any_work(endpoint: Endpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    endpoint.script = [lambda _: PERMANENT["openai: wrong key"]]
    params = [option for name, value in endpoint.params.items() for option in ("--judge-param", f"{name}={value}")]
    result = CliRunner().invoke(train.app, ["returns_desk", "--judge", "openai/judge", *params])
    assert isinstance(result.exception, GavelError)
    assert "Incorrect API key" in result.exception.message
    assert len(endpoint.requests) == 1
    assert list(tmp_path.iterdir()) == []


FILE = """
scenario = "desk.py:returns"
[model]
base_model = "models/tiny"
[judge]
rubric = "@texts/rubric.txt"
cassette = "../replies.sqlite"
[backend]
engine = {python = "venv/bin/python"}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    (folder / "models" / "tiny").mkdir(parents=True)
    (folder / "run.toml").write_text(FILE)
    return folder / "run.toml"


def paths(config: RunConfig) -> list[str | None]:
    engine = config.backend.engine
    assert isinstance(engine, VllmSettings)
    judge = config.judge
    return [config.scenario, config.model.base_model, judge.rubric, str(judge.cassette), engine.python]


@pytest.mark.parametrize("place", [".", "configs", "elsewhere"])
def test_relative_paths_are_those_beside_the_file(run_file: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_file.parents[1]
    (root / place).mkdir(exist_ok=True)
    monkeypatch.chdir(root / place)
    typed = {".": "configs/run.toml", "configs": "run.toml", "elsewhere": "../configs/run.toml"}[place]
    found = [str((root / place / each).resolve()) for each in paths(run_config(typed, {})) if each and each[0] != "@"]
    beside = [run_file.parent / "desk.py:returns", run_file.parent / "models/tiny", root / "replies.sqlite"]
    assert found == [str(path) for path in (*beside, run_file.parent / "venv/bin/python")]
    rubric = run_config(typed, {}).judge.rubric
    assert rubric is not None
    assert (root / place / rubric[1:]).resolve() == run_file.parent / "texts/rubric.txt"


def test_the_services_file_is_read_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    run_file = tmp_path / "etc" / "gavel.toml"
    run_file.write_text(
        'database = "judgements.sqlite"\n[rubrics]\nbrief = "@brief.txt"\nplain = "Be brief."\n'
        '[judge]\nmodels = "stand-in"\nrubric = "@rubric.txt"\n'
    )
    monkeypatch.chdir(tmp_path)
    tables = paths_beside(read_tables(Path("etc/gavel.toml"))[0], Path("etc"))
    assert tables["database"] == "etc/judgements.sqlite"
    assert tables["rubrics"] == {"brief": "@etc/brief.txt", "plain": "Be brief."}
    assert tables["judge"]["rubric"] == "@etc/rubric.txt"
    server = {"database": "postgresql://user@host/name"}
    assert paths_beside(server, Path("etc")) == server


def test_paths_in_options_are_those_of_the_working_directory(run_file: Path) -> None:
    config = run_config(str(run_file), {"rubric": "@mine.txt", "cassette": "here.sqlite"})
    assert (config.judge.rubric, str(config.judge.cassette)) == ("@mine.txt", "here.sqlite")


@pytest.mark.parametrize(
    "text",
    [
        'scenario = "returns_desk"\n[model]\nbase_model = "Qwen/Qwen3-4B"\n',
        'scenario = "/desks/returns.py"\n[judge]\ncassette = "none"\nrubric = "Be brief."\n',
        'scenario = "returns_desk"\n[backend]\nengine = {python = "python3.12"}\n',
        'scenario = "returns_desk"\n[backend]\nengine = "vllm"\n',
    ],
)
def test_what_is_no_relative_path_stays_as_it_is(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.toml").write_text(text)
    monkeypatch.chdir(tmp_path / "a")
    assert run_config("run.toml", {}) == run_config("../b/run.toml", {})


def test_a_configuration_that_is_written_elsewhere_reads_back_as_the_same(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = run_file.parents[1]
    monkeypatch.chdir(root)
    config = run_config("configs/run.toml", {})
    copy = root / "runs" / "desk" / "run.toml"
    copy.parent.mkdir(parents=True)
    copy.write_text(to_toml(paths_seen_from(config, copy.parent), config))
    assert paths(run_config("runs/desk/run.toml", {})) == paths(config)


def test_a_checkpoint_is_a_path_where_there_is_such_a_directory(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    found = [
        paths_beside({"model": {"from_checkpoint": named}}, tmp_path)["model"]["from_checkpoint"]
        for named in ("adapter", "adapter@3", "sft/pupil", "sft/pupil@3", "s3://bucket/sft/pupil@3")
    ]
    others = ["sft/pupil", "sft/pupil@3", "s3://bucket/sft/pupil@3"]
    assert found == [str(tmp_path / "adapter"), f"{tmp_path / 'adapter'}@3", *others]


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--loss", "ppo", "--seed", "3", "--steps", "7", "--name", "mine"],
        ["--engine", "http://gpu-1:8000", "--judge-param", "temperature=0.5", "--rubric", 'Two\nlines, "quoted".'],
        ["--model", "Qwen/Qwen3-0.6B", "--quantization", "4bit", "--lora-rank", "8", "--max-cost", "0.5"],
        ["--set", "train.sampler_correction.cap=3", "--set", 'judge.prices={"openai/x" = [1, 2]}', "--shard-base"],
        ["--set", 'judge.models=[{model = "stand-in", weight = 2}, "constant"]'],
    ],
)
def test_what_is_printed_reads_back_as_the_same_configuration(tmp_path: Path, options: list[str]) -> None:
    text = printed("returns_desk", *options)
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert printed(str(path)) == text
    again = run_config(str(path), {}).resolved().model_dump(mode="json")
    for table in ("model", "judge", "loop", "train", "backend"):
        for name, value in tomllib.loads(text)[table].items():
            assert again[table][name] == value or isinstance(value, dict | list)


def test_a_seed_given_over_a_printed_file_is_the_judges_seed_too(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(printed("returns_desk"))
    assert run_config(str(tmp_path / "run.toml"), {"seed": 5}).resolved().judge.seed == 5


def check(scenario: str, **model: Any) -> None:
    given = RunConfig.model_validate({"scenario": scenario, "model": model})
    check_model(given.resolved(), given, find_scenario(scenario))


@pytest.mark.parametrize(("base_model", "scenario"), SCENARIOS.items())
def test_a_built_in_model_is_trained_on_its_own_scenario(
    base_model: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(scenario, base_model=base_model)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("scenario", ["booking_desk", "text_adventure", "writing", "one_sentence"])
def test_without_a_model_those_that_fit_are_named(scenario: str) -> None:
    with pytest.raises(ModelChoiceError, match=f"knows the scenario returns_desk alone, and {scenario}") as error:
        check(scenario)
    assert "--model smollm2-135m" in str(error.value)
    made_for_it = [name for name, its_own in SCENARIOS.items() if its_own == scenario]
    assert all(f"--model {name}, a tiny one made for this scenario" in str(error.value) for name in made_for_it)
    assert ("a tiny one" in str(error.value)) == bool(made_for_it)


@pytest.mark.parametrize(
    ("base_model", "scenario"),
    [
        (name, other)
        for name in SCENARIOS
        for other in ("returns_desk", "booking_desk", "writing")
        if other != SCENARIOS[name]
    ],
)
def test_a_built_in_model_that_was_named_for_another_scenario_is_warned_of(
    base_model: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(scenario, base_model=base_model)
    warning = capsys.readouterr().err
    assert warning.startswith(f"Note: the built-in model {base_model} knows the scenario {SCENARIOS[base_model]} alone")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_a_dotenv_file_is_read_and_the_environment_wins(tmp_path: Path):
    (tmp_path / ".env").write_text(
        "GAVEL_JUDGE_MODEL=openai/gpt-5-mini\nGAVEL_RUNS=from_file\n"
        'GAVEL_PRICES={"openai/gpt-5-mini": [0.25, 2.0]}  # USD\n'
    )
    os.environ["GAVEL_RUNS"] = "from_environment"
    load_dotenv()
    assert (default_judge(), runs_root()) == ("openai/gpt-5-mini", Path("from_environment"))
    assert prices_from_environment() == {"openai/gpt-5-mini": (0.25, 2.0)}


def test_without_settings_the_stand_in_judges_and_nothing_leaves_the_machine():
    load_dotenv()
    assert (default_judge(), runs_root(), wandb_mode()) == ("stand-in", Path("runs"), "off")


def test_a_key_without_a_value_is_not_set(tmp_path: Path):
    (tmp_path / ".env").write_text("OPENAI_API_KEY=\n")
    load_dotenv()
    assert "OPENAI_API_KEY" not in os.environ


def test_every_line_of_the_example_can_be_read(tmp_path: Path):
    example = Path(__file__).parents[3] / ".env.example"
    lines = [line.removeprefix("# ") for line in example.read_text().splitlines() if "=" in line]
    (tmp_path / ".env").write_text("\n".join(lines))
    load_dotenv()
    assert (default_judge(), wandb_mode()) == ("ollama/qwen3", "offline")
    assert prices_from_environment() == {"openai/gpt-5-mini": (0.25, 2.0)}


@pytest.mark.parametrize(
    ("mode", "key", "expected"),
    [("", "k", "online"), ("offline", "", "offline"), ("disabled", "k", "off"), ("", "", "off")],
)
def test_metrics_go_to_wandb_only_when_asked(mode: str, key: str, expected: str):
    os.environ |= {"WANDB_MODE": mode, "WANDB_API_KEY": key}
    assert wandb_mode() == expected


def test_a_dotenv_file_that_is_no_text_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"\.env cannot be read"):
        load_dotenv()


class Stub:
    def __init__(self, console: Console) -> None:
        self.judge = self
        providers.register(LIKELIHOOD, self.reply)

    def reply(self, messages: list[dict[str, str]]) -> str:
        return json.dumps({"scores": []})


def test_the_first_question_loads_the_frozen_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_models", dict(providers._models))
    providers._models.pop(LIKELIHOOD, None)
    made: list[Stub] = []
    monkeypatch.setattr(demo_session, "FrozenBase", lambda console: made.append(Stub(console)) or made[-1])
    register_likelihood()
    assert not made
    for _ in range(2):
        assert providers.answer(LIKELIHOOD, []) == '{"scores": []}'
    register_likelihood()  # leaves the loaded one
    assert providers.answer(LIKELIHOOD, []) == '{"scores": []}'
    assert len(made) == 1
