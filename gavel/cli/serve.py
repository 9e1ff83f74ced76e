"""`gavel serve`, the judge behind HTTP; `gavel keys`, the API keys in its database; `gavel serve-env`, a world
behind a protocol of environments."""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.lazy_commands import group_app, single_command
from gavel.cli.named import scenario_named
from gavel.cli.options import (
    announce_stand_in,
    flags_of,
    parse_assignments,
    read_settings,
    run_flags,
    settings_command,
    with_default_judge,
    with_options,
)
from gavel.cli.run_file import Where, merge, paths_beside, read_tables, to_toml, toml_value, validate
from gavel.cli.terminal import plain, print_table, silence_libraries
from gavel.judge.service.config import DATABASE_VARIABLE, ENVIRONMENT_PREFIX, FILE_NAME, KeyConfig, ServiceConfig
from gavel.judge.service.schemas import HASH_PREFIX, KeyScope, new_token, token_hash

if TYPE_CHECKING:
    from gavel.judge.service.engine.admission import KeyStore

_SHOW = "`gavel serve --check` shows every setting with its description."
_MAKE = f"gavel serve --check > {FILE_NAME}"
_PASSWORD = re.compile(r"(://[^:/@]*:).*(@)")
SERVE_FLAGS = [
    *flags_of("", "host", "port", "processes", "database", "otel"),
    *run_flags("judge"),
]


Database = Annotated[
    str | None, typer.Option(help="The service's database. Default: as for gavel serve.", show_default=False)
]
Config = Annotated[
    Path | None, typer.Option(help=f"The service's settings as TOML. Default: {FILE_NAME}, where there is one.")
]


def serve(
    values: Mapping[str, Any],
    config: Config = None,
    check: Annotated[bool, typer.Option("--check", help="Check and print all settings as TOML; do not serve.")] = False,
) -> None:
    """Serve the judge over HTTP: POST /v1/score takes a group and answers with its scores.

    Settings come from a file, the environment (GAVEL_SERVICE_PORT, GAVEL_SERVICE_LIMITS__MEMBERS, GAVEL_DATABASE_URL)
    and these options; the later ones win.
    """
    need_extra("service", "gavel serve")
    settings = service_config(values, config)
    if settings.otel:
        need_extra("otel", "--otel")
    if check:
        settings.read_rubrics()
        for name, key in settings.keys.items():
            key.token_hash(name)
        settings.judge.build().check()
        shown = {"database": _PASSWORD.sub(r"\1***\2", settings.database)}
        return typer.echo(to_toml(settings.model_copy(update=shown)), nl=False)
    announce_stand_in([settings.judge.models] if isinstance(settings.judge.models, str) else [])
    from gavel.judge.service.http.server import serve as run

    run(settings, typer.echo, silence_libraries)


def service_config(values: Mapping[str, Any], file: Path | None = None) -> ServiceConfig:
    """The service that file, environment and options describe. Raises a `GavelError` that names what is wrong."""
    path = file or Path(FILE_NAME)
    tables, where = read_tables(path, _MAKE) if file is not None or path.exists() else ({}, Where())
    tables = paths_beside(tables, path.parent)
    for name, found in _environment().items():
        tables = merge(tables, found)
        where |= dict.fromkeys(found, name)
    config = read_settings(ServiceConfig, values, SERVE_FLAGS, tables, where, _SHOW)
    return config.model_copy(update={"judge": with_default_judge(config.judge)})


def _environment() -> dict[str, dict[tuple[str, ...], Any]]:
    """The settings from environment variables, by variable."""
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for name, text in sorted(os.environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and text:
            path = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            found[name] = parse_assignments([f"{path}={text}"])
    if url := os.environ.get(DATABASE_VARIABLE, "").strip():
        found[DATABASE_VARIABLE] = {("database",): url}
    return found


app = settings_command(serve, ServiceConfig, SERVE_FLAGS)


KEY_FLAGS = [
    *flags_of("", "projects=--project", "judges=--judge", "max_cost_usd=--max-cost"),
    *flags_of("", "requests_per_minute", "concurrent_groups"),
]


def create(
    values: Mapping[str, Any],
    name: Annotated[str, typer.Argument(help="What the key is for; shown in the list.")],
    database: Database = None,
    config: Config = None,
    print_hash: Annotated[
        bool, typer.Option("--print-hash", help="Store nothing; print key and entry for gavel.toml.")
    ] = False,
) -> None:
    """Make a key, and print it: it is shown this once. From the first key on, the service answers no one without."""
    if not name.strip() or not name.isprintable():
        raise GavelError(f"a key cannot be called {name!r}: the list could not show it", "Say what it is for: trainer.")
    scope = read_settings(KeyScope, values, KEY_FLAGS)
    if print_hash:
        token, _ = new_token()
        entry = KeyConfig(**scope.model_dump(exclude_defaults=True), hash=HASH_PREFIX + token_hash(token))
        typer.echo(token)
        validate(ServiceConfig, {"keys": {name: entry.model_dump()}}, {})
        lines = [f"{field} = {toml_value(value)}" for field, value in entry.model_dump(exclude_defaults=True).items()]
        table = f'[keys."{name}"]' if "." in name else f"[keys.{name}]"
        return typer.echo("\n".join([table, *sorted(lines)]), err=True)
    with _store(database, config) as store:
        token, key = store.create(name, scope)
    typer.echo(token)
    typer.echo(f"This is key {key.id}; it is not shown again. Send it as Authorization: Bearer KEY.", err=True)


def list_keys(
    database: Database = None,
    config: Config = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON; times in Unix seconds, an empty scope may use all.")
    ] = False,
) -> None:
    """List the keys with what they may do and have spent; never the keys themselves."""
    with _store(database, config) as store:
        found = store.all_now()
    if as_json:
        fields = ("id", "name", "created_at", "revoked_at", "spent_usd", "unpriced_groups")  # not its token's hash
        listed = [{name: getattr(key, name) for name in fields} for key in found]
        for key, entry in zip(found, listed, strict=True):
            entry["scope"] = key.scope.model_dump(mode="json", exclude_defaults=True)
        return typer.echo(json.dumps(listed, indent=1))
    console = Console()
    if not found:
        console.print(plain("There are no keys. Make one: gavel keys create NAME."))
        return
    rows: list[tuple[str, ...]] = []
    for key in found:
        allowed = key.scope.model_dump(exclude_defaults=True).items()
        scope = ", ".join(f"{name} {'/'.join(each) if isinstance(each, list) else each}" for name, each in allowed)
        made = time.strftime("%Y-%m-%d", time.localtime(key.created_at))
        unknown = f", {counted(key.unpriced_groups, 'group')} unknown" if key.unpriced_groups else ""
        may = "revoked" if key.revoked_at is not None else scope or "all"
        rows.append((key.id, key.name, made, may, f"{key.spent_usd:.4g} USD{unknown}"))
    print_table(console, ("id", "name", "made", "may use", "spent"), rows)


def revoke(
    key: Annotated[str, typer.Argument(help="Id of the key, as in the list.")],
    database: Database = None,
    config: Config = None,
) -> None:
    """End a key for ever. Running services know it within seconds."""
    with _store(database, config) as store:
        store.revoke(key)
    typer.echo(f"Key {key} is revoked.")


@contextmanager
def _store(database: str | None, config: Path | None) -> Iterator["KeyStore"]:
    need_extra("service", "gavel keys")
    from gavel.judge.service.engine.admission import KeyStore
    from gavel.judge.service.store.database import Database as ServiceDatabase

    opened = ServiceDatabase.open(service_config({"database": database}, config).database)
    try:
        yield KeyStore(opened)
    finally:
        opened.close()


keys_app = group_app(
    "Make, list and revoke API keys of the service.",
    {"create": with_options(create, KeyScope, KEY_FLAGS), "list": list_keys, "revoke": revoke},
)


KEY_VARIABLE = "GAVEL_ENV_KEY"


def serve_env(
    scenario: Annotated[str, typer.Argument(help="A shipped scenario, file.py, or an address: as for gavel train.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 36001,
    host: Annotated[
        str, typer.Option(help=f"Address to listen on; beyond this machine {KEY_VARIABLE} is needed.")
    ] = "127.0.0.1",
    most: Annotated[int, typer.Option("--most", min=1, help="Environments that may be open at once.")] = 256,
    idle_minutes: Annotated[float, typer.Option(min=0.01, help="After which an unused environment is ended.")] = 15.0,
) -> None:
    """Serve a scenario to AgentGym's clients, and to gavel train agentgym:URL elsewhere.

    The clients create environments, reset them to a task by its number, and send actions as text (Thought and Action,
    or a call as JSON). Nothing is sampled or judged here.
    """
    from gavel.integrations._serving import listen_safely, serve
    from gavel.integrations.agentgym.server import create_app

    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    listener = listen_safely(host, port, key, KEY_VARIABLE)
    silence_libraries()
    world = scenario_named(scenario)
    application = create_app(world, key=key, most=most, idle_seconds=60 * idle_minutes)

    def announce(url: str) -> None:
        typer.echo(f"{world.name} · {url} · AgentGym's protocol · Ctrl-C ends it\ngavel check agentgym:{url}")

    asyncio.run(serve(application, listener, host=host, announce=announce))


serve_env_app = single_command(serve_env)
