"""`gavel serve` and its settings, `gavel keys`, `gavel serve-env`."""

import json
import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gavel.base.errors import GavelError
from gavel.cli.serve import SERVE_FLAGS, app, keys_app, serve, service_config
from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.schemas import token_hash
from tests.forked import gavel

NOTHING = {flag.key: None for flag in SERVE_FLAGS}
KEY = "gavel_0123456789ab_" + "x" * 43
HASH = f"sha256:{'0' * 64}"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAVEL_DATABASE_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def test_options_win_over_the_environment_that_over_the_file_and_else_it_is_a_stand_in_on_loopback(
    monkeypatch: pytest.MonkeyPatch,
):
    config = service_config(NOTHING)
    assert config == ServiceConfig(judge=config.judge)
    assert (config.host, config.database, config.judge.models) == ("127.0.0.1", "gavel_service.sqlite", "stand-in")
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
    ("file", "message"),
    [
        ("prot = 1", r"gavel.toml, line 1: .* has no prot.*\n.*port"),
        ("[limits]\nmembers = 0", "line 2: limits.members"),
        (f'[keys.ci]\nhash = "{HASH}"\nprojectsx = 1', "line 3: .*\n.*projects"),
        ("[judge]\nordersx = 1", "line 2: .*\n.*orders"),
        ("port = 1", "GAVEL_SERVICE_LIMITS__MEMBERZ"),
        ("port =", "is not TOML"),
        ("[keys.ci]\nprojects = []", "hash or an env"),
        (f'[keys.ci]\nhash = "{HASH}"\nenv = "CI"', "not both"),
        (f'[keys.ci]\nhash = "{KEY}"', "print-hash"),
        (f'[keys.ci]\nkey = "{KEY}"', "no key"),
        (f'[keys."a b"]\nhash = "{HASH}"', "keys.a b"),
        (f'[keys]\nci = "{KEY}"', "each key is a table"),
        (f'[keys.ci]\nenv = "{KEY}"', "name of an environment variable"),
        ('[keys.ci]\nenv = "NOT_THERE"', "NOT_THERE"),
        ('[keys.ci]\nenv = "SHORT"', "SHORT"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_no_key_shown(file: str, message: str, monkeypatch: pytest.MonkeyPatch):
    Path("gavel.toml").write_text(file)
    monkeypatch.setenv("SHORT", "secret")
    if message.startswith("GAVEL_"):
        monkeypatch.setenv(message, "1")
    result = CliRunner().invoke(app, ["--check"])
    assert isinstance(result.exception, GavelError)
    assert re.search(message, str(result.exception))
    assert KEY not in str(result.exception) + result.output
    assert result.exception.remedy


def test_it_serves_neither_others_without_keys_nor_on_a_port_that_is_taken():
    with pytest.raises(GavelError, match=r"does not listen on 0\.0\.0\.0"):
        serve({**NOTHING, "host": "0.0.0.0", "judge": "constant"})
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(GavelError, match="cannot listen on"):
        serve({**NOTHING, "port": taken.getsockname()[1], "judge": "constant"})


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(keys_app, arguments)


def test_a_key_is_made_listed_and_revoked_and_what_cannot_be_done_is_an_error():
    def run(*arguments: str) -> str:
        return keys(*arguments).stdout

    token = run("create", "trainer", "--project", "desk", "--max-cost", "5", "--concurrent-groups", "8").strip()
    key_id = token.split("_")[1]
    listed = run("list")
    assert key_id in listed
    assert "projects desk, max_cost_usd 5.0, concurrent_groups 8" in listed
    assert token not in listed
    text = run("list", "--json")
    assert token not in text
    assert token_hash(token) not in text
    (found,) = json.loads(text)
    assert (found["id"], found["name"], found["spent_usd"], found["revoked_at"]) == (key_id, "trainer", 0, None)
    assert found["scope"] == {"projects": ["desk"], "max_cost_usd": 5.0, "concurrent_groups": 8}
    assert run("revoke", key_id) == f"Key {key_id} is revoked.\n"
    assert "revoked" in run("list")
    for arguments in (("revoke", "none"), ("create", "x", "--max-cost", "-1"), ("create", "a\nb")):
        assert isinstance(keys(*arguments).exception, GavelError | SystemExit)


@pytest.mark.slow
def test_what_cannot_be_served_is_told(tmp_path: Path) -> None:
    for host, key, told in (("0.0.0.0", "", "GAVEL_ENV_KEY"), ("256.1.1.1", "k", "cannot listen")):
        refused = gavel("serve-env", "returns_desk", "--host", host, cwd=tmp_path, GAVEL_ENV_KEY=key)
        assert refused.returncode == 1
        assert told in refused.stderr


def test_a_hash_is_printed_as_an_entry_of_the_settings_and_nothing_is_stored():
    result = keys("create", "ci", "--project", "desk", "--max-cost", "5", "--print-hash")
    token = result.stdout.strip()
    assert token.startswith("gavel_")
    assert not Path("gavel_service.sqlite").exists()
    Path("gavel.toml").write_text(result.stderr)
    key = service_config({}).keys["ci"]
    assert (key.token_hash("ci"), key.projects, key.max_cost_usd) == (token_hash(token), ["desk"], 5)
    assert token not in result.stderr
