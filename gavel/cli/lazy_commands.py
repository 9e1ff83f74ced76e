"""Help as plain text in groups: names stand whole at any width, and of many options those come first that a first run
needs.

The `app` of a command's module is a Typer app with one command, or with several for a group.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

FIRST = ("--model", "--judge", "--rubric", "--steps", "--max-tokens", "--name", "--max-cost", "--dry-run")
"""Options that a first run needs: they head the help of a command with more than `_MANY`."""
_MANY = 20
_LONGEST_NAME = 44
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


class PlainCommand(_Grouped, TyperCommand):
    """A command whose help is plain text."""


plain_app = partial(typer.Typer, pretty_exceptions_enable=False, rich_markup_mode=None)


def group_app(help_text: str, commands: Mapping[str, Callable[..., None]]) -> typer.Typer:
    """The `app` of a module with several commands: `gavel keys create`."""
    app = plain_app(add_completion=False, cls=PlainGroup, no_args_is_help=True, help=help_text)
    app.callback()(lambda: None)  # a group, also of one command
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

    app = plain_app(add_completion=False)
    app.command(cls=Command)(function)
    return app
