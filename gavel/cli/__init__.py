"""The command line.

    gavel train returns_desk --judge openai/gpt-5-mini --steps 20
    gavel config returns_desk > run.toml && gavel train run.toml

One module per command, named after it, or one for several that share a subject (`checkpoints`, `serve`, `atropos`). It
is loaded only when the command runs, so `gavel --help` loads no model library. Options of a run are made from the
fields of `RunConfig`.
"""

from gavel.cli.app import main as main
from gavel.cli.app import run as run
