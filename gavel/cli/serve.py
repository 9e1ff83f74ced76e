"""`gavel serve`: the judge behind HTTP."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import single_command
from gavel.cli.options import (
    JUDGE_FLAGS,
    Flag,
    announce_stand_in,
    given,
    parse_assignments,
    with_default_judge,
    with_options,
)
from gavel.cli.run_file import Where, merged, paths_beside, read_tables, to_toml, validated
from gavel.cli.terminal import silence_libraries
from gavel.judge.service.config import DATABASE_VARIABLE, ENVIRONMENT_PREFIX, FILE_NAME, ServiceConfig

_SHOW = "`gavel serve --check` shows every setting with its description."
_MAKE = f"gavel serve --check > {FILE_NAME}"
_PASSWORD = re.compile(r"(://[^:/@]*:).*(@)")
SERVE_FLAGS = [
    Flag("host", "--host"),
    Flag("port", "--port"),
    Flag("processes", "--processes"),
    Flag("database", "--database"),
    Flag("otel", "--otel"),
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS),
]


def serve(
    values: Mapping[str, Any],
    config: Annotated[
        Path | None, typer.Option(help=f"Settings as TOML. Default: {FILE_NAME}, where there is one.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the settings, print all of them as TOML, and do not serve.")
    ] = False,
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
        typer.echo(_checked(settings), nl=False)
        return
    announce_stand_in([settings.judge.models] if isinstance(settings.judge.models, str) else [])
    from gavel.judge.service.http.server import serve as run

    run(settings, typer.echo, silence_libraries)


def _checked(settings: ServiceConfig) -> str:
    """The settings as TOML, without the database's password. Raises a `GavelError` for what they name in vain."""
    settings.read_rubrics()
    for name, key in settings.keys.items():
        key.token_hash(name)
    settings.judge.build().check()
    return to_toml(settings.model_copy(update={"database": _PASSWORD.sub(r"\1***\2", settings.database)}))


def service_config(values: Mapping[str, Any], file: Path | None = None) -> ServiceConfig:
    """The service that file, environment and options describe. Raises a `GavelError` that names what is wrong."""
    path = file or Path(FILE_NAME)
    tables, where = read_tables(path, _MAKE) if file is not None or path.exists() else ({}, Where())
    tables = paths_beside(tables, path.parent)
    for name, found in _environment().items():
        tables = merged(tables, found)
        where |= dict.fromkeys(found, name)
    chosen = given(values, ServiceConfig, SERVE_FLAGS)
    names = {tuple(flag.path.split(".")): flag.name for flag in SERVE_FLAGS}
    where |= {path: names.get(path) or names[path[:-1]] for path in chosen}
    config = validated(ServiceConfig, merged(tables, chosen), where, _SHOW)
    return config.model_copy(update={"judge": with_default_judge(config.judge)})


def _environment() -> dict[str, dict[tuple[str, ...], Any]]:
    """What environment variables set, by variable."""
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for name, text in sorted(os.environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and text:
            path = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            found[name] = parse_assignments([f"{path}={text}"])
    if url := os.environ.get(DATABASE_VARIABLE, "").strip():
        found[DATABASE_VARIABLE] = {("database",): url}
    return found


app = single_command(with_options(serve, ServiceConfig, SERVE_FLAGS))
