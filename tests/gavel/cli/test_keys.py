"""`gavel keys`: made once, listed without the key, revoked."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli.serve import keys_app as app
from gavel.cli.serve import service_config
from gavel.judge.service.schemas.records import KeyScope, token_hash
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.key_store import KeyStore, settings_key_id


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GAVEL_DATABASE_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


def test_a_key_is_made_listed_and_revoked():
    token = run("create", "trainer", "--project", "desk", "--max-cost", "5", "--concurrent-groups", "8").strip()
    key_id = token.split("_")[1]
    listed = run("list")
    assert key_id in listed
    assert "projects desk, max_cost_usd 5.0, concurrent_groups 8" in listed
    assert token not in listed
    assert run("revoke", key_id) == f"Key {key_id} is revoked.\n"
    assert "revoked" in run("list")


def test_a_hash_is_printed_as_an_entry_of_the_settings_and_nothing_is_stored():
    options = ("--project", "desk", "--max-cost", "5", "--print-hash")
    result = CliRunner().invoke(app, ("create", "ci", *options), catch_exceptions=False)
    token = result.stdout.strip()
    assert token.startswith("gavel_")
    assert not Path("gavel_service.sqlite").exists()
    Path("gavel.toml").write_text(result.stderr)
    key = service_config({}).keys["ci"]
    assert (key.token_hash("ci"), key.projects, key.max_cost_usd) == (token_hash(token), ["desk"], 5)
    assert token not in result.stderr


def test_a_key_of_the_settings_is_listed_with_what_it_has_spent_and_can_be_revoked():
    database = Database.open("gavel_service.sqlite")
    scope = KeyScope(projects=["desk"])
    asyncio.run(KeyStore(database).file({settings_key_id("ci"): scope}))
    database.close()
    assert "settings/ci" in run("list")
    assert run("revoke", "settings/ci") == "Key settings/ci is revoked.\n"


def test_without_keys_the_list_says_how_to_make_one():
    assert "gavel keys create NAME" in run("list")


@pytest.mark.parametrize(
    "arguments", [("revoke", "none"), ("create", "x", "--max-cost", "-1"), ("create", ""), ("create", "a\nb")]
)
def test_what_cannot_be_done_is_an_error_with_a_remedy(arguments: tuple[str, ...]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, GavelError | SystemExit)


def test_programs_read_the_list_as_json_without_the_keys_or_their_hashes():
    assert json.loads(run("list", "--json")) == []
    token = run("create", "trainer", "--project", "desk", "--max-cost", "5").strip()
    revoked = run("create", "old").strip().split("_")[1]
    run("revoke", revoked)
    text = run("list", "--json")
    assert token not in text
    assert token_hash(token) not in text
    first, second = json.loads(text)
    assert (first["id"], first["name"], first["revoked_at"]) == (token.split("_")[1], "trainer", None)
    assert first["scope"] == {"projects": ["desk"], "max_cost_usd": 5.0}
    assert (first["spent_usd"], first["unpriced_groups"]) == (0, 0)
    assert second["scope"] == {}
    assert second["revoked_at"] >= second["created_at"]
