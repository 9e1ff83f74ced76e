"""`--backend-url` of the commands for a run's checkpoints; that of training is `RunConfig.backend.url`."""

from typing import Annotated

import typer

BackendUrl = Annotated[
    str | None,
    typer.Option(
        help="The run is one of the `gavel backend` there, as with gavel train: its address (GAVEL_BACKEND_KEY is its "
        "key), or sky://CLUSTER."
    ),
]
