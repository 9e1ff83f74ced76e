"""Commands whose modules are loaded when they run.

    app = lazy_app("gavel", "…", "gavel.cli.", {"train": "Train an agent on a scenario."})

lists `train` with that line and loads `gavel.cli.train` only for `gavel train …`. The module's `app` is the command:
a Typer app with one command, or with several for a group.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup


def lazy_app(name: str, help_text: str, modules: str, commands: Mapping[str, str], **options: Any) -> typer.Typer:
    """A group of `commands` (name to one line of help), each the `app` of the module `modules` + its name,
    with underscores for hyphens."""

    class Group(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            found, command, rest = super().resolve_command(ctx, args)
            if command is not None and found is not None:
                command = typer.main.get_command(importlib.import_module(f"{modules}{found.replace('-', '_')}").app)
                command.name = found
            return found, command, rest

    app = typer.Typer(name=name, cls=Group, no_args_is_help=True, help=help_text, **options)
    for command, line in commands.items():
        app.command(command, help=line)(_listed)
    return app


def _listed() -> None:
    """Stands for a command in the listing; `Group.resolve_command` replaces it by the real one."""


def single_command(function: Callable[..., None], further: Mapping[str, str] | None = None) -> typer.Typer:
    """The `app` of a module with one command.

    `further`: first word to module, for commands that begin with this one's name (`gavel export trajectories`).
    """

    class Command(TyperCommand):
        def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
            if not args or args[0] not in (further or {}):
                return super().make_context(info_name, args, parent, **extra)
            name = args[0]
            command = typer.main.get_command(importlib.import_module((further or {})[name]).app)
            return command.make_context(f"{info_name} {name}", args[1:], parent, **extra)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=Command)(function)
    return app
