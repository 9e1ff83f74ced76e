"""The service's settings from a file, the environment and options."""

from pathlib import Path

import pytest

from gavel.cli.serve import SERVE_FLAGS, serve, service_config
from gavel.judge.service.config import ServiceConfig
from gavel.llm.errors import GavelError

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
