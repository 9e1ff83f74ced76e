"""Arguments that the commands of `gavel cluster` share."""

from typing import TYPE_CHECKING, Annotated

import typer

from gavel.base.extras import MissingExtraError, missing_parts

if TYPE_CHECKING:
    from gavel.trainer.backends.skypilot.host import ClusterHost

Name = Annotated[str, typer.Argument(help="The cluster.")]
Accelerators = Annotated[
    str, typer.Option(help="GPUs of each node, as SkyPilot names them: H100:1, A100-80GB:8; none for none.")
]
Infra = Annotated[
    str | None, typer.Option(help="aws, gcp/us-central1, k8s, slurm, … Default: the cheapest that is set up.")
]
Image = Annotated[str | None, typer.Option(help="Machine image, or docker:IMAGE.")]
Nodes = Annotated[int, typer.Option("--num-nodes", min=1, help="Nodes, which learn together.")]
IdleMinutes = Annotated[int, typer.Option(min=2, help="Minutes without use, after which the machines are stopped.")]
Down = Annotated[
    bool | None,
    typer.Option("--down/--stop", help="Delete idle machines, or stop them. Default: stop, where that can be."),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", help="Environment variable that the cluster is given, such as HF_TOKEN. Repeatable."),
]
Engine = Annotated[str, typer.Option(help="What samples the rollouts there: transformers or vllm.")]


def host_of_cluster(name: str) -> "ClusterHost":
    """Who started it; SkyPilot for a cluster that is not known here. Raises `ClusterError` without SkyPilot."""
    from gavel.trainer.backends.skypilot.backend import host_of
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.sky_host import SkyHost

    record = ClusterRecord.find(name)
    return SkyHost() if record is None else host_of(record)


def need_service() -> None:
    """Raises `MissingExtraError` where what a remote backend needs is not installed."""
    if missing := missing_parts("train"):
        raise MissingExtraError("gavel cluster", missing[0], "train")


def accelerators_of(named: str) -> str | None:
    return None if named == "none" else named
