"""`reference/commands.md`: every command with its arguments, options and defaults, as the command line itself has them."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import typer.main

from gavel.cli.app import COMMANDS, app
from gavel.cli.checkpoints import trajectories
from gavel.cli.lazy_commands import single_command

HEAD = """# Commands

Every command, argument and option, made from the command line itself: `gavel COMMAND --help` prints the same. Options that set
a field of a run can also stand in a `run.toml` ([settings](settings.md)).

Exit status: 0 when the command did what it was asked for, 1 when it could not (the error says what to type next), 2 for
a command line that cannot be read, 130 after Ctrl-C. With `--json` a command prints one JSON document on standard output, and nothing else there.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that can be typed: `gavel cluster up`."""

    name: str
    command: Any


def commands() -> Iterator[Command]:
    """All commands, those of groups with the group's name before theirs."""
    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        yield from _of(f"gavel {name}", root.resolve_command(typer.Context(root), [name])[1])
        if name == "export":
            yield from _of("gavel export trajectories", typer.main.get_command(single_command(trajectories)))


def _of(name: str, command: Any) -> Iterator[Command]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield Command(name, command)
        return
    for word, listed in inner.items():
        yield from _of(f"{name} {word}", listed)


def page() -> str:
    """The page, one section a command."""
    return HEAD + "\n" + "\n".join(_section(command) for command in commands())


def usage(command: Command) -> str:
    """`gavel score FILE... [OPTIONS]`."""
    names = [_argument(each) for each in command.command.params if each.param_type_name == "argument"]
    return " ".join([command.name, *names, "[OPTIONS]"])


def about(command: Command) -> str:
    """The command's help, one paragraph a line."""
    text = command.command.help or ""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def options(command: Command) -> list[Any]:
    return [each for each in command.command.params if each.param_type_name == "option" and each.name != "help"]


def _section(command: Command) -> str:
    lines = [f"## {command.name}", "", f"```text\n{usage(command)}\n```", "", about(command), ""]
    arguments = [each for each in command.command.params if each.param_type_name == "argument"]
    if arguments:
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| `{_argument(each)}` | {cell(getattr(each, 'help', '') or '')} |" for each in arguments]
        lines.append("")
    panels: dict[str, list[Any]] = {}
    for option in options(command):
        panels.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(option)
    for title, group in panels.items():
        lines += [f"**{title}**", "", "| option | |", "|---|---|"]
        lines += [f"| {flags(option)} | {cell(_described(option))} |" for option in group]
        lines.append("")
    return "\n".join(lines)


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name or "").upper().strip("[]{}.")
    shown = f"{name}..." if argument.nargs == -1 else name
    return shown if argument.required else f"[{shown}]"


def flags(option: Any) -> str:
    """`--orders` with what it takes, each name in backticks."""
    names = [*option.opts, *option.secondary_opts]
    takes = "" if option.is_flag else f" {_taken(option)}"
    return ", ".join(f"`{name}{takes}`" for name in names).replace("|", "\\|")


def _taken(option: Any) -> str:
    """What stands after an option: its metavar, its choices, or a word for its type."""
    if option.metavar:
        return str(option.metavar)
    annotation = option.type_descriptor.annotation
    while get_origin(annotation) in (Union, types.UnionType, list):
        annotation = next(part for part in get_args(annotation) if part is not types.NoneType)
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    return {int: "N", float: "X"}.get(annotation, "TEXT")


def _described(option: Any) -> str:
    text = " ".join((option.help or "").split())
    default = option.default
    is_told = "default" in text.lower() or default in (None, False, (), []) or callable(default)
    return text if is_told else f"{text} Default: {default}."


def cell(text: str) -> str:
    """Text for a cell of a table: one line, no pipes or tags of its own."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
