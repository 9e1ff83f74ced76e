"""`gavel cluster …`: a cluster that trains for this machine, by SkyPilot."""

from gavel.cli.lazy_commands import lazy_app

app = lazy_app(
    "cluster",
    "Train on a cluster that SkyPilot starts, and write its scripts for other systems.",
    "gavel.cli.cluster_",
    {
        "up": "Start a cluster that trains, or find it again; its price is told first.",
        "status": "Show what is on, and what it costs.",
        "logs": "Show the log of the server on a cluster.",
        "ssh": "Open a shell on a cluster's first node.",
        "down": "End a cluster, with its machines and what is on them.",
        "export": "Write the same scripts as a SkyPilot job group, or for Slurm, Docker or Kubernetes.",
    },
    add_completion=False,
    pretty_exceptions_enable=False,
)
