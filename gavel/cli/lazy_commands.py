"""Commands whose modules are loaded when they run.

`gavel --help` lists `train` with one line, and `gavel.cli.train` is loaded only for `gavel train …`. The module's `app`
is the command: a Typer app with one command, or with several for a group.

Help is plain text in groups: names stand whole at any width, and of many options those come first that a first run
needs.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

FIRST = ("--model", "--judge", "--rubric", "--steps", "--max-tokens", "--name", "--max-cost", "--dry-run")
"""Options that a first run needs: they head the help of a command with more than `_MANY`."""
_MANY = 20
_LONGEST_NAME = 44
_FEW = 10
"""Commands of a group that an unknown one is answered with."""
_CHOICES = re.compile(r"[\[<]([^\[\]<>]*\|[^\[\]<>]*)[\]>]")


class _Grouped:
    """Writes the options of a command in the groups that `rich_help_panel` names."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        listed: dict[str, list[tuple[str, str]]] = {"Arguments": [], "For a first run": [], "Options": []}
        shown = [parameter for parameter in self.get_params(ctx) if not getattr(parameter, "hidden", False)]
        by_name = {name: parameter for parameter in shown for name in parameter.opts}
        first = [by_name[name] for name in FIRST if name in by_name] if len(shown) > _MANY else []
        for parameter in [*first, *(each for each in shown if each not in first)]:
            if parameter.param_type_name == "argument":
                group = "Arguments"
            elif parameter in first:
                group = "For a first run"
            else:
                group = getattr(parameter, "rich_help_panel", None) or "Options"
            if (record := parameter.get_help_record(ctx)) is not None:
                listed.setdefault(group, []).append(_whole_name(*record))
        for group, records in listed.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)
        if hasattr(self, "format_commands"):
            self.format_commands(ctx, formatter)


def _whole_name(name: str, text: str) -> tuple[str, str]:
    """Choices that are too long to stand beside an option's name go into its text."""
    if len(name) > _LONGEST_NAME and (choices := _CHOICES.search(name)):
        return name.replace(choices[0], "").strip(), f"{text} One of {choices[1].replace('|', ', ')}."
    return name, text


class PlainGroup(_Grouped, TyperGroup):
    """A group of commands whose help is plain text; their lines are wrapped, not cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1_000)) for name, command in self.commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if len(self.commands) <= _FEW and self.get_command(ctx, args[0]) is None and args[0][:1] != "-":
            ctx.fail(f"No such command {args[0]!r}. There is: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)


class PlainCommand(_Grouped, TyperCommand):
    """A command whose help is plain text."""


def lazy_app(
    name: str,
    help_text: str,
    commands: Mapping[str, str],
    groups: Mapping[str, Sequence[str]],
    functions: Mapping[str, Callable[..., None]],
) -> typer.Typer:
    """The program: a group of `commands` (name to one line of help), which the help lists in `groups`.

    A command is the `app` of the module of `gavel.cli` that is named after it, with underscores for hyphens; or
    `NAME_app` of the module that `_WITH` names; or one of `functions`.
    """

    class Group(PlainGroup):
        def format_commands(self, ctx: Any, formatter: Any) -> None:
            for title, names in groups.items():
                with formatter.section(title):
                    formatter.write_dl([(each, commands[each]) for each in names])

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            found, command, rest = super().resolve_command(ctx, args)
            if command is not None and found is not None:
                command = typer.main.get_command(_app_of(found, functions.get(found)))
                command.name = found
            return found, command, rest

    app = typer.Typer(
        name=name,
        cls=Group,
        no_args_is_help=True,
        help=help_text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command, line in commands.items():
        app.command(command, help=line)(_listed)
    return app


_WITH = {
    **dict.fromkeys(("export", "push", "pull", "deploy", "deployments", "undeploy"), "checkpoints"),
    **dict.fromkeys(("evolve", "sft"), "imitation"),
    **dict.fromkeys(("serve-atropos", "send-atropos"), "atropos"),
    "cluster": "backend",
    "config": "train",
    **dict.fromkeys(("keys", "serve-env"), "serve"),
    **dict.fromkeys(("report", "view"), "runs"),
    "scenarios": "new",
}
"""Commands whose module has another name."""


def _app_of(command: str, function: Callable[..., None] | None) -> typer.Typer:
    if function is not None:
        return single_command(function)
    module = importlib.import_module(f"gavel.cli.{_WITH.get(command, command).replace('-', '_')}")
    return getattr(module, f"{command.replace('-', '_')}_app" if command in _WITH else "app")


def _listed() -> None:
    """Placeholder of a command in the listing; `Group.resolve_command` replaces it by the real one."""


def group_app(help_text: str, commands: Mapping[str, Callable[..., None]]) -> typer.Typer:
    """The `app` of a module with several commands: `gavel keys create`."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=PlainGroup,
        no_args_is_help=True,
        help=help_text,
    )
    app.callback()(_listed)  # a group, also of one command
    for name, function in commands.items():
        app.command(name, cls=PlainCommand)(function)
    return app


def single_command(
    function: Callable[..., None], further: Mapping[str, Callable[..., None]] | None = None
) -> typer.Typer:
    """The `app` of a module with one command.

    `further`: by their first word, commands that begin with this one's name (`gavel export trajectories`).
    """

    class Command(PlainCommand):
        def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
            if not args or args[0] not in (further or {}):
                return super().make_context(info_name, args, parent, **extra)
            name = args[0]
            command = typer.main.get_command(single_command((further or {})[name]))
            return command.make_context(f"{info_name} {name}", args[1:], parent, **extra)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(cls=Command)(function)
    return app
