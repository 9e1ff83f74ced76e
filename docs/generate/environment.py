"""`reference/environment.md`: the environment variables, from the comments of `.env.example`.

What only a test, a process that Gavel starts, or one page needs is added here; a test holds that no variable that the code
reads is missing.
"""

import re
from pathlib import Path

from .commands import cell

EXAMPLE = Path(__file__).parents[2] / ".env.example"
HEAD = """# Environment variables

The command line also reads them from a file `.env` in the current directory; what is set in the environment wins, and an empty value counts as
not set. Copy [`.env.example`](../../.env.example) and uncomment what you need. Settings of a run belong in a [run.toml](settings.md).
"""
FURTHER = {
    "GAVEL_ATROPOS_KEY": "Key of `gavel serve-atropos`; an address other than loopback needs one.",
    "GAVEL_ENV_KEY": "Key of `gavel serve-env`; an address other than loopback needs one.",
    "GAVEL_BACKEND_URL": "Address of a `gavel backend` that trains and samples ([another machine](../elsewhere.md)).",
    "GAVEL_BACKEND_KEY": "Its key; without it `gavel backend` makes one and prints it.",
    "GAVEL_CACHE": "Directory of fetched models. Default: `~/.cache/gavel`.",
    "GAVEL_DATABASE_URL": "Database of `gavel serve`: an SQLite file or `postgresql://…` ([the service](../service.md)).",
    "GAVEL_JUDGE_KEY": "Key with which a reward or a `gavel.JudgeClient` asks a judge service.",
    "GAVEL_JUDGE_URL": "Address of the judge service that a reward or a `gavel.JudgeClient` asks.",
    "GAVEL_MASTER_PORT": "Port at which several processes of a run find each other. Default: a free one.",
    "GAVEL_OPPONENT": "Opponent in `tic_tac_toe` evaluations: `random`, `perfect` or a LiteLLM model.",
    "GAVEL_PYTHON": "Interpreter with which a cluster's node runs Gavel. Default: that of its own installation.",
    "GAVEL_RELAY_KEY": "Key of the relay between a harness of verifiers and the policy; it may stay unset, for the relay is this process's own.",
    "GAVEL_SERVICE_…": "Any setting of the service: `GAVEL_SERVICE_LIMITS__MEMBERS=16` is `members = 16` under `[limits]`.",
    "GAVEL_STATE": "Directory of clusters and their keys. Default: `~/.local/state/gavel`.",
    "SSL_CERT_FILE": "Certificates that `RemoteBackend` and judges trust, such as one that signed itself.",
}


def page() -> str:
    """The page: one table."""
    variables = {**_of_the_example(), **FURTHER}
    rows = [f"| `{name}` | {text if name in FURTHER else cell(text)} |" for name, text in sorted(variables.items())]
    return "\n".join([HEAD, "| variable | |", "|---|---|", *rows]) + "\n"


def _of_the_example() -> dict[str, str]:
    """Variable to the comment above it."""
    found: dict[str, str] = {}
    comment: list[str] = []
    for line in EXAMPLE.read_text().splitlines():
        if variable := re.match(r"# ([A-Z][A-Z0-9_]+)=", line):
            found.setdefault(
                variable[1], " ".join(comment) or f"Key or address of {variable[1].split('_')[0].title()}."
            )
        elif line.startswith("# ---") or not line:
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
    return found
