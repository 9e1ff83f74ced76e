"""The `gavel` command, and the same command line for a scenario's own file (`gavel.run`)."""

import atexit
import errno
import gc
import os
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main
from dotenv import dotenv_values

from gavel.base import entry_points
from gavel.base.errors import GavelError
from gavel.cli.interrupts import INTERRUPTED, stop_at_next_interrupt
from gavel.cli.lazy_commands import PlainGroup, plain_app, single_command
from gavel.cli.terminal import heartbeat, print_error, replace_unprintable, silence_libraries

if TYPE_CHECKING:
    from gavel.scenarios.scenario import Scenario

GROUPS = {
    "First steps": {
        "demo": "Train a tiny agent on this machine: no GPU, no key, a few minutes.",
        "new": "Write the beginning of a scenario of your own, with a test.",
        "check": "Play two episodes of a scenario, and show what the judge sees and says, before anything is trained.",
        "train": "Train an agent on a scenario, with a judge's scores as the reward.",
        "evaluate": "Measure and compare models on held-out tasks: checkpoints, bases, API models.",
        "view": "Read runs and judged files in the browser: what the agent did, and why it got its score.",
        "doctor": "Show what is installed, which keys are set, and what to do next.",
    },
    "Judge": {
        "score": "Score trajectories from a file with a judge.",
        "judge": "Draft a rubric, and test the judge itself.",
        "serve": "Serve the judge over HTTP: one judge for trainers in any language.",
        "keys": "Make, list and revoke API keys of the service.",
    },
    "Train and compare": {
        "compare": "Compare rewards by training on each.",
        "sft": "Train a model to imitate the best members of judged groups.",
        "evolve": "Train a model to imitate its own best attempts, in rounds (AgentEvol, rejection sampling).",
        "plan": "Show what a model needs of memory and what to set, before anything is loaded.",
        "config": "Print the whole configuration of a run as TOML, with defaults and descriptions.",
        "scenarios": "List the shipped scenarios.",
        "runs": "List the runs with their state and best figure.",
        "report": "Write a run's report as a page: curves, scores, what was left out, cost, samples.",
    },
    "Checkpoints": {
        "export": "Write a run's policy as a plain model directory; export trajectories: what its agent did.",
        "push": "Copy a run's checkpoint to an S3-compatible store or a directory.",
        "pull": "Copy a checkpoint out of such a store into a run here.",
        "deploy": "Serve a run's checkpoint at a host, and prove what it serves.",
        "deployments": "List deployments with their state and costs.",
        "undeploy": "Stop a deployment and remove what was made for it.",
    },
    "Other machines": {
        "backend": "Train and serve models here for clients elsewhere (gavel.RemoteBackend).",
        "cluster": "Train on a cluster that SkyPilot starts: up, logs, down.",
    },
    "Other programs": {
        "serve-env": "Serve a scenario to AgentGym's clients, and to trainers elsewhere.",
        "serve-atropos": "Serve Atropos' trajectory API, and train on its groups.",
        "send-atropos": "Send a scenario's judged groups to any server of Atropos' trajectory API.",
    },
}
"""The help's groups of commands, each with its line."""
_OWN = {name for lines in GROUPS.values() for name in lines}

_WITH = {
    **dict.fromkeys(("export", "push", "pull", "deploy", "deployments", "undeploy"), "checkpoints"),
    **dict.fromkeys(("evolve", "sft"), "imitation"),
    **dict.fromkeys(("serve-atropos", "send-atropos"), "atropos"),
    **dict.fromkeys(("keys", "serve-env"), "serve"),
    **dict.fromkeys(("report", "view"), "runs"),
    **{"cluster": "backend", "config": "train", "scenarios": "new"},
}
"""Commands that stand in the module of another one, as its `NAME_app`."""


def _load_further(entry: str) -> Any:
    """The module of an integration's command. One that cannot be loaded is listed, and says why when it is run."""
    try:
        module = entry_points.load("gavel.commands", entry)
        if module.NAME in _OWN:
            raise entry_points.EntryPointError(
                f"{module.__name__} and Gavel's own are both called {module.NAME!r}.", "Uninstall its distribution."
            )
        return module
    except entry_points.EntryPointError as error:
        failure = error

    def command() -> None:
        raise failure

    return SimpleNamespace(NAME=entry, HELP="Cannot be loaded: run it to see why.", command=command)


_FURTHER = {module.NAME: module for module in map(_load_further, entry_points.names("gavel.commands"))}
GROUPS["Other programs"] |= {name: module.HELP for name, module in _FURTHER.items()}
COMMANDS = {name: line for lines in GROUPS.values() for name, line in lines.items()}

_SERVES = ("serve", "serve-atropos", "serve-env", "send-atropos", "backend", "view", "cluster")
"""Commands that wait for others, or whose programs speak for themselves."""
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)

_GC_THRESHOLDS = 20_000, 20, 20
"""With Python's own thresholds a run's million objects are scanned so often that a demo takes an eighth longer. These
cost 60 MB."""


class _Program(PlainGroup):
    """Lists its commands in groups, and loads the module of a command when it runs."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, lines in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*lines.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        if name in _FURTHER:
            found = single_command(_FURTHER[name].command)
        else:
            module = import_module(f"gavel.cli.{_WITH.get(name, str(name)).replace('-', '_')}")
            found = getattr(module, f"{name.replace('-', '_')}_app" if name in _WITH else "app")
        command = typer.main.get_command(found)
        command.name = name
        return name, command, rest


app = plain_app(
    name="gavel",
    cls=_Program,
    no_args_is_help=True,
    help="An LLM judge as the reward, and a GRPO LoRA trainer for agents that use tools.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command, _line in COMMANDS.items():
    app.command(_command, help=_line)(lambda: None)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from gavel.base.extras import DISTRIBUTION

        typer.echo(f"gavel {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


class SettingsError(GavelError):
    """A setting cannot be read."""


def load_dotenv(directory: Path | None = None) -> None:
    """Adds the values of `.env` in `directory` (default: the current one) to the environment, if there is one.

    Raises `SettingsError` when it cannot be read.
    """
    path = (directory or Path.cwd()) / ".env"
    try:
        values = dotenv_values(path) if path.is_file() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", "Make it a readable text file in UTF-8.") from error
    for name, value in values.items():
        if value:
            os.environ.setdefault(name, value)


def main() -> None:
    """The `gavel` command."""
    _main(sys.argv[1:])


_OF_A_SCENARIO = ("check", "train", "evaluate", "compare", "evolve", "config", "send-atropos", "serve-env")
"""Commands whose first argument is a scenario, which its own file leaves out."""

_is_running = False
"""True while this process runs a command."""


def run(scenario: "Scenario") -> None:
    """The command line of one scenario's own file: `python file.py train …`, `python file.py evaluate …`.

    A run.toml may follow `train` there too; it names the scenario by its name.
    """
    from gavel.cli.named import own_scenarios

    if _is_running:
        raise GavelError(
            f"the file of {scenario.name} calls gavel.run where it is read by another command.",
            'Put it below `if __name__ == "__main__":`, as in README.',
        )
    arguments = sys.argv[1:]
    first = next(iter(arguments[1:]), "")
    if arguments and arguments[0] in _OF_A_SCENARIO and first != scenario.name and not first.endswith(".toml"):
        arguments.insert(1, scenario.name)
    own_scenarios[scenario.name] = scenario
    _main(arguments)


def _main(arguments: list[str]) -> None:
    """Runs a command. A user's mistake is printed as one sentence with its remedy; the exit status is then 1."""
    global _is_running
    _is_running = True
    gc.set_threshold(*_GC_THRESHOLDS)
    atexit.register(gc.freeze)  # otherwise the interpreter searches a run's million objects for cycles when it ends
    replace_unprintable()
    try:
        load_dotenv()
        silence_libraries()
        command = next((word for word in arguments if not word.startswith("-")), "")
        asks_help = not command or not {"-h", "--help"}.isdisjoint(arguments)
        with nullcontext() if asks_help else heartbeat(f"gavel {command}", serves=command in _SERVES):
            app(arguments)
    except GavelError as error:
        print_error(error)
        sys.exit(1)
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        print_error(GavelError(f"the output cannot be printed: {error.strerror}.", "Make room, or print elsewhere."))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        stop_at_next_interrupt()  # Python waits for threads when it ends, and would print where
