"""The two scripts of a cluster: `setup` installs Gavel on a node, and `run` runs Python with it there.

The run script needs SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS and SKYPILOT_NUM_GPUS_PER_NODE where
there are several nodes or GPUs, whoever starts it: SkyPilot, Slurm, Kubernetes or a test. Then torchrun starts a
process for each GPU; one process is started plainly. GAVEL_PYTHON is another interpreter than that of the setup.
"""

import shlex
from collections.abc import Sequence
from importlib.resources import files

from gavel.trainer.backends.skypilot.own_package import OwnPackage


def setup_script(package: OwnPackage, more: str = "", directory: str | None = None) -> str:
    """Installs Gavel on this node; the same package again costs nothing. `more`: commands that follow.

    `directory`: of the package's wheel, as a shell there writes it.
    """
    given = {
        "gavel_identity": shlex.quote(package.identity),
        "gavel_package": package.shell_word(extras=False, directory=directory),
        "gavel_requirement": package.shell_word(extras=True, directory=directory),
    }
    variables = "".join(f"{name}={value}\n" for name, value in given.items())
    return variables + _text("setup.sh") + (more.rstrip() + "\n" if more.strip() else "")


def run_script(arguments: Sequence[str]) -> str:
    """Runs Python with these arguments on this node."""
    return f"set -- {shell_words(arguments)}\n{run_text()}"


def run_text() -> str:
    """The run script; its own arguments are Python's."""
    return _text("run.sh")


def shell_words(arguments: Sequence[str]) -> str:
    """The arguments as words of a shell; one that begins with ~/ is in the home directory there."""
    return " ".join(
        '"$HOME"/' + shlex.quote(argument[2:]) if argument.startswith("~/") else shlex.quote(argument)
        for argument in arguments
    )


def _text(name: str) -> str:
    return (files("gavel.trainer.backends.skypilot") / name).read_text(encoding="utf-8")
