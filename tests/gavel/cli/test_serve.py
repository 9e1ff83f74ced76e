"""The service's settings from a file, the environment and options."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli.serve import SERVE_FLAGS, app, serve, service_config
from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import KeyConfig, ServiceConfig, ServiceLimits

NOTHING = {flag.key: None for flag in SERVE_FLAGS}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GAVEL_DATABASE_URL", raising=False)


def test_without_settings_it_is_a_stand_in_on_loopback_with_a_file():
    config = service_config(NOTHING)
    assert config == ServiceConfig(judge=config.judge)
    assert (config.host, config.database, config.judge.models) == ("127.0.0.1", "gavel_service.sqlite", "stand-in")


def test_options_win_over_the_environment_and_that_over_the_file(monkeypatch: pytest.MonkeyPatch):
    Path("gavel.toml").write_text(
        'port = 1\nhost = "::1"\ndatabase = "a"\n[judge]\nmodels = "x"\norders = 3\n[limits]\nmembers = 5\n'
    )
    monkeypatch.setenv("GAVEL_SERVICE_PORT", "2")
    monkeypatch.setenv("GAVEL_SERVICE_LIMITS__MEMBERS", "6")
    monkeypatch.setenv("GAVEL_SERVICE_JUDGE__PARAMS", "{temperature = 0}")
    monkeypatch.setenv("GAVEL_DATABASE_URL", "postgresql://host/name")
    config = service_config({**NOTHING, "port": 3, "judge": "y"})
    assert (config.host, config.port, config.database) == ("::1", 3, "postgresql://host/name")
    assert (config.judge.models, config.judge.orders, config.judge.params) == ("y", 3, {"temperature": 0})
    assert config.limits.members == 6


@pytest.mark.parametrize(
    ("file", "variable", "message"),
    [
        ("prot = 1", None, r"gavel.toml, line 1: the top of the configuration has no prot.*\n.*port"),
        ("[limits]\nmembers = 0", None, "line 2: limits.members"),
        ("port = 1", ("GAVEL_SERVICE_LIMITS__MEMBERZ", "1"), "GAVEL_SERVICE_LIMITS__MEMBERZ"),
        ("port =", None, "is not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    file: str, variable: tuple[str, str] | None, message: str, monkeypatch: pytest.MonkeyPatch
):
    Path("gavel.toml").write_text(file)
    if variable:
        monkeypatch.setenv(*variable)
    with pytest.raises(GavelError, match=message):
        service_config(NOTHING)


def test_a_file_that_is_named_must_be_there():
    with pytest.raises(GavelError, match="cannot be read"):
        service_config(NOTHING, Path("nowhere.toml"))


KEY = "gavel_0123456789ab_" + "x" * 43
HASH = f"sha256:{'0' * 64}"
FIELDS = [
    *((("",), name) for name in ServiceConfig.model_fields),
    *((("limits",), name) for name in ServiceLimits.model_fields),
    *((("keys", "ci"), name) for name in KeyConfig.model_fields),
    *((("judge",), name) for name in JudgeConfig.model_fields),
]


@pytest.mark.parametrize(("table", "name"), FIELDS, ids=lambda part: part if isinstance(part, str) else ".".join(part))
def test_a_name_that_is_nearly_right_is_refused_with_the_right_one(table: tuple[str, ...], name: str):
    key = f'hash = "{HASH}"\n' if table[0] == "keys" and name != "hash" else ""
    header = f"[{'.'.join(table)}]\n" if table[0] else ""
    Path("gavel.toml").write_text(f"{header}{key}{name}x = 1\n")
    with pytest.raises(GavelError) as refused:
        service_config(NOTHING)
    assert f"gavel.toml, line {2 + bool(key) - (not header)}" in str(refused.value)
    assert refused.value.remedy == f"Did you mean {name}?"


SETTINGS = f"""
port = 0
retention_days = 30
judges = ["openai/gpt-5"]
modes = ["pairwise"]
group_size = 8
database = "postgresql://user:pass@word@host/name"
[judge]
models = "stand-in"
max_cost_usd = 20
[rubrics]
kind = "Be kind."
[limits]
members = 32
[keys.ci]
hash = "{HASH}"
projects = ["desk"]
max_cost_usd = 5
requests_per_minute = 600
[keys."team.a"]
env = "TEAM_A"
concurrent_groups = 8
"""


def test_the_check_prints_all_settings_and_they_read_back_the_same(monkeypatch: pytest.MonkeyPatch):
    Path("gavel.toml").write_text(SETTINGS)
    monkeypatch.setenv("TEAM_A", KEY)
    printed = CliRunner().invoke(app, ["--check"], catch_exceptions=False)
    assert printed.exit_code == 0
    assert "pass@word" not in printed.stdout
    assert KEY not in printed.stdout
    Path("again.toml").write_text(printed.stdout.replace("***", "pass@word"))
    assert service_config(NOTHING, Path("again.toml")) == service_config(NOTHING)
    for model in (ServiceConfig, ServiceLimits):
        assert all(name in printed.stdout for name in model.model_fields)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[keys.ci]\nprojects = []", "hash or an env"),
        (f'[keys.ci]\nhash = "{HASH}"\nenv = "CI"', "not both"),
        (f'[keys.ci]\nhash = "{KEY}"', "print-hash"),
        (f'[keys.ci]\nkey = "{KEY}"', "no key"),
        (f'[keys.ci]\nhash = "{HASH}"\nbudget_usd = 3', "no budget_usd"),
        (f'[keys.ci]\nhash = "{HASH}"\nmax_cost_usd = 0', "max_cost_usd"),
        (f'[keys."a b"]\nhash = "{HASH}"', "keys.a b"),
        (f'[keys]\nci = "{KEY}"', "each key is a table"),
        (f'[keys.ci]\nenv = "{KEY}"', "name of an environment variable"),
        ('[keys.ci]\nenv = "NOT_THERE"', "NOT_THERE"),
        ('[keys.ci]\nenv = "SHORT"', "SHORT"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_and_never_shown(table: str, message: str, monkeypatch: pytest.MonkeyPatch):
    Path("gavel.toml").write_text(table)
    monkeypatch.setenv("SHORT", "secret")
    result = CliRunner().invoke(app, ["--check"])
    assert isinstance(result.exception, GavelError)
    assert message in str(result.exception)
    assert KEY not in str(result.exception) + result.output
    assert result.exception.remedy


@pytest.mark.parametrize("named", ['rubrics = {a = "@nowhere.txt"}', '[judge]\nmodels = "no-such-model"'])
def test_the_check_finds_what_is_named_and_not_there(named: str):
    Path("gavel.toml").write_text(named)
    assert isinstance(CliRunner().invoke(app, ["--check"]).exception, GavelError)


def test_it_does_not_listen_to_others_without_keys():
    with pytest.raises(GavelError, match=r"does not listen on 0\.0\.0\.0"):
        serve({**NOTHING, "host": "0.0.0.0", "judge": "constant"})


def test_a_port_that_is_taken_is_named():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(GavelError, match="cannot listen on"):
            serve({**NOTHING, "port": taken.getsockname()[1], "judge": "constant"})
