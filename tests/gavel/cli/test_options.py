"""Options, run.toml and the environment make one configuration; a wrong value is named with where it was set."""

import itertools
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from safetensors.torch import save_file
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli import train
from gavel.cli.app import SettingsError, load_dotenv
from gavel.cli.options import ModelChoiceError, check_model, default_judge, run_config
from gavel.cli.run_file import RunFileError, paths_beside, paths_seen_from, to_toml
from gavel.llm.budget import prices_from_environment
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.config import Cispo, Gspo, VllmSettings, recipe
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
    ("options", "assignments", "settings"),
    [
        ({"vllm_url": ["http://gpu-1:8000", "http://gpu-2:8000"]}, [], {"urls": "http://gpu-1:8000,http://gpu-2:8000"}),
        ({"engine": "http://gpu-1:8000, http://g"}, [], {"urls": "http://gpu-1:8000,http://g"}),
        ({"vllm_replicas": 2, "engine": "vllm"}, [], {"replicas": 2}),
        ({}, ["backend.engine=vllm", "backend.engine.sleep=true"], {"sleep": True}),
        (
            {},
            ["backend.engine=http://x", "backend.engine.api_key=k"],
            {"urls": ("http://x",), "api_key": SecretStr("k")},
        ),
    ],
)
def test_an_engine_and_its_settings_are_given_in_any_order(options: dict, assignments: list, settings: dict) -> None:
    for order in (assignments, assignments[::-1]):
        assert run_config("returns_desk", options, order).backend.engine == VllmSettings(**settings)


@pytest.mark.parametrize(
    ("options", "assignments", "told"),
    [
        ({"vllm_url": ["gpu-1:8000"]}, [], "--vllm-url: "),
        ({"vllm_url": ["http://gpu-1", "http://gpu-1/v1/"]}, [], "--vllm-url: .*twice"),
        ({"vllm_url": ["http://gpu-1"], "vllm_replicas": 2}, [], "--vllm-replicas: "),
        ({"engine": "transformers", "vllm_replicas": 2}, [], "--engine is transformers, .*--vllm-replicas"),
        ({"engine": "sglang"}, [], "--engine: .*'sglang'.* transformers, vllm"),
        ({"reward": ["juge=1"]}, [], "--reward: "),
        ({}, ["backend.engine=transformers", "backend.engine.sleep=true"], "--set backend.engine is transformers"),
        ({}, ["train.beta=0.1", "train.beta.x=1"], "--set train.beta is 0.1, which has no x"),
        ({}, ["train.loss.kind=gspo", "train.loss.kind=cispo"], "--set names train.loss.kind twice"),
        ({"loss": "ppo"}, ["train.normalize_over_batch=true"], "normalize_over_batch is for losses that compare"),
        (
            {},
            ["train.loss.clip_low=2", "train.loss.kind=cispo"],
            r"\[train.loss\] has no clip_low.*\n.*aggregation, constant_length, kind, ratio_cap",
        ),
    ],
)
def test_options_that_cannot_be_or_exclude_each_other_are_refused_by_name(
    options: dict, assignments: list[str], told: str
) -> None:
    for order in (assignments, assignments[::-1]):
        with pytest.raises(RunFileError if "--reward" in told else GavelError, match=told):
            run_config("returns_desk", options, order)


def test_a_scenario_alone_gets_the_defaults_that_follow_from_its_model() -> None:
    config = run_config("returns_desk", {"steps": 2}).resolved()
    assert (config.train.learning_rate, config.train.warmup_steps, config.train.total_steps) == (2e-3, 1, 2)
    assert (config.model.name, config.judge.models, config.loop.final_tasks) == ("returns-desk", "stand-in", 128)
    other = run_config("returns_desk", {"model": "Qwen/Qwen3-0.6B", "seed": 3, "evaluation_tasks": 8}).resolved()
    assert (other.train.learning_rate, other.model.name, other.judge.seed) == (1e-5, "qwen3-0.6b", 3)
    assert other.loop.final_tasks == 8


def test_options_override_single_values_of_a_file_but_inherit_nothing_of_its_loss(file: str) -> None:
    config = run_config(file, {"orders": 1, "seed": 5})
    assert (config.judge.orders, config.judge.max_cost_usd, config.train.advantage) == (1, 0.5, "rank")
    assert config.resolved().judge.seed == 5
    assert config.loop.reward == {"judge": 1.0}
    assert run_config(file, {"reward": ["judge=1,hand=0.5"]}).loop.reward == {"judge": 1.0, "hand": 0.5}
    assert run_config(file, {"loss": "gspo"}).train.loss == Gspo()
    clip = ["train.loss.kind=gspo", "train.loss.clip_high=1e-3"]
    assert run_config(file, {}, clip).train.loss == Gspo(clip_high=1e-3)
    train = run_config(file, {}, recipe="dapo").train
    assert (train.advantage, train.loss, train.mask_truncated) == ("std", recipe("dapo").loss, True)
    assert run_config(file, {"loss": "gspo"}, recipe="dapo").train.loss == Gspo()


@pytest.mark.parametrize("recipe", [None, "gspo"])
@pytest.mark.parametrize(
    "assignments",
    [
        ["train.loss.kind=cispo", "train.loss.ratio_cap=3", "train.loss.aggregation=bnpo"],
        ["train.loss={ratio_cap=3, aggregation='bnpo'}", "train.loss.kind=cispo"],
    ],
)
def test_the_order_of_assignments_does_not_matter(file: str, recipe, assignments: list[str]) -> None:
    for order in itertools.permutations(assignments):
        assert run_config(file, {}, order, recipe=recipe).train.loss == Cispo(ratio_cap=3, aggregation="bnpo")


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("scenario = 'x'\n[trian]\nbeta = 1\n", "line 2: .*trian", "train?"),
        ("scenario = 'x'\n[train.loss]\nkind = 'gspo'\nclip_hig = 1\n", r"line 4: \[train.loss\]", "clip_high?"),
        ("scenario = 'x'\n[train]\nspeedup = 1\n", r"line 3: \[train\]", "There are: "),
        ("scenario = 'x'\n[judge]\norders = 0\n", r"line 3: judge\.orders: ", "gavel config"),
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_as_an_editor_on_windows_saves_it_is_read(tmp_path: Path, encoding: str):
    file = tmp_path / "run.toml"
    file.write_text('scenario = "returns_desk"\r\n[loop]\r\nsteps = 7\r\n', encoding=encoding)
    assert run_config(str(file), {}).loop.steps == 7


def test_a_dry_run_of_a_training_tells_calls_tokens_and_dollars(tmp_path, monkeypatch):
    size = ["--steps", "3", "--tasks", "2", "--group-size", "4"]
    dry = ["returns_desk", *size, "--judge", "openai/gpt-5-mini", "--dry-run"]
    keyless = CliRunner().invoke(train.app, dry)
    assert "USD" in keyless.output
    assert "OPENAI_API_KEY" in str(keyless.exception)  # as the run would say
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    result = CliRunner().invoke(train.app, dry)
    assert result.exit_code == 0, result
    assert f"{3 * 2 * 2} calls, about" in result.output
    assert "USD" in result.output
    assert "Nothing was asked." in result.output
    assert "held-out" not in result.output  # which its success measures
    assert list(tmp_path.iterdir()) == []
    judged = CliRunner().invoke(train.app, [*dry, "--set", "loop.judged_tasks=5", "--set", "loop.evaluate_every=2"])
    assert f"held-out attempts with the base's, on top: {2 * 5 * 2} calls" in judged.output


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--from-checkpoint", "adapter", "--lora-rank", "3"], "rank 3"),
        (["--model", "empty"], "empty"),
        (["--judge", "nobody/nothing"], "nobody/nothing"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_before_it_prints_anything(options, wrong, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8}')
    save_file({}, tmp_path / "adapter" / "adapter_model.safetensors")
    refused = CliRunner().invoke(train.app, ["returns_desk", "--judge", "constant", *options, "--dry-run"])
    assert isinstance(refused.exception, GavelError)
    assert wrong in refused.exception.message
    assert not refused.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "empty"]


def test_a_training_with_a_wrong_key_ends_before_any_work(endpoint: Endpoint, tmp_path):
    endpoint.script = [lambda _: PERMANENT["openai: wrong key"]]
    params = [option for name, value in endpoint.params.items() for option in ("--judge-param", f"{name}={value}")]
    result = CliRunner().invoke(train.app, ["returns_desk", "--judge", "openai/judge", *params])
    assert isinstance(result.exception, GavelError)
    assert "Incorrect API key" in result.exception.message
    assert len(endpoint.requests) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    (folder / "models" / "tiny").mkdir(parents=True)
    (folder / "run.toml").write_text(
        'scenario = "desk.py:returns"\nmodel = {base_model = "models/tiny"}\n'
        'judge = {rubric = "@texts/rubric.txt", cassette = "../replies.sqlite"}\n'
        'backend = {engine = {python = "venv/bin/python"}}\n'
    )
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
    found = [(root / place / str(each).removeprefix("@")).resolve() for each in paths(run_config(typed, {}))]
    names = ("desk.py:returns", "models/tiny", "texts/rubric.txt", "../replies.sqlite", "venv/bin/python")
    assert found == [(run_file.parent / name).resolve() for name in names]

    copy = root / place / "runs" / "desk" / "run.toml"
    copy.parent.mkdir(parents=True)
    config = run_config(typed, {})
    copy.write_text(to_toml(paths_seen_from(config, copy.parent), config))
    assert paths(run_config("runs/desk/run.toml", {})) == paths(config)


def test_the_services_file_is_read_the_same_way() -> None:
    tables = {"database": "judgements.sqlite", "rubrics": {"brief": "@brief.txt", "plain": "Be brief."}}
    beside = {"database": "etc/judgements.sqlite", "rubrics": {"brief": "@etc/brief.txt", "plain": "Be brief."}}
    assert paths_beside(tables, Path("etc")) == beside
    server = {"database": "postgresql://user@host/name"}
    assert paths_beside(server, Path("etc")) == server


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(train.config_app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--engine", "http://gpu-1:8000", "--judge-param", "temperature=0.5", "--rubric", 'Two\nlines, "quoted".'],
        ["--model", "Qwen/Qwen3-0.6B", "--quantization", "4bit", "--loss", "ppo", "--max-cost", "0.5"],
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


def check(scenario: str, **model: Any) -> None:
    given = RunConfig.model_validate({"scenario": scenario, "model": model})
    check_model(given.resolved().model, find_scenario(scenario))


def test_without_a_model_those_that_fit_are_named_and_of_one_for_another_scenario_is_warned(capsys) -> None:
    for scenario in ("booking_desk", "writing"):
        with pytest.raises(ModelChoiceError, match="knows the scenario returns_desk alone") as error:
            check(scenario)
        made_for_it = [name for name, its_own in SCENARIOS.items() if its_own == scenario]
        assert all(f"--model {name}" in str(error.value) for name in [*made_for_it, "smollm2-135m"])
    for base_model, scenario in SCENARIOS.items():
        check(scenario, base_model=base_model)
        assert capsys.readouterr().err == ""
        check("writing", base_model=base_model)
        assert capsys.readouterr().err.startswith(f"Note: the built-in model {base_model}")


def test_every_line_of_the_example_dotenv_file_is_read_and_the_environment_wins(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ | {"GAVEL_RUNS": "from_environment"})
    example = Path(__file__).parents[3] / ".env.example"
    lines = [f"{line.removeprefix('# ')}  # a note" for line in example.read_text().splitlines() if "=" in line]
    (tmp_path / ".env").write_text("\n".join([*lines, "GAVEL_RUNS=from_file", "OPENAI_API_KEY="]))
    load_dotenv()
    assert (default_judge(), wandb_mode(), runs_root()) == ("ollama/qwen3", "offline", Path("from_environment"))
    assert prices_from_environment() == {"openai/gpt-5-mini": (0.25, 2.0)}
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"\.env cannot be read"):
        load_dotenv()
