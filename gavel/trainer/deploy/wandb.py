"""W&B Inference: the adapter as an artifact of the type lora, which W&B serves over its base when it is asked for.

    gavel deploy desk/clerk@12 wandb:my-team/my-project

The artifact's name is the record's and its alias the step; an artifact counts once all of its files have arrived. The
SDK repeats its requests and keeps the files' hashes, so what was uploaded before a crash is not uploaded again.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from gavel.base.extras import install_line
from gavel.base.secrets import without_secrets
from gavel.trainer.deploy.host import GOES_ON, Plan, Report, Resource, find_misfits, key_of
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

T = TypeVar("T")
_START_SECONDS = 120.0
_UPLOAD_SECONDS = 3600
_INFERENCE = "https://api.inference.wandb.ai/v1"
_RANKS = range(1, 17)
_BASES = (
    "OpenPipe/Qwen3-14B-Instruct",
    "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
)
_REGION = "coreweave-us"
"""The storage region of the artifact; Inference reads only from its own."""


class WandbHost:
    """A project of a team."""

    name, key_variable = "wandb", "WANDB_API_KEY"
    remedies: Mapping[int, str] = {}

    def __init__(self, place: str, *, base: str = "") -> None:
        """`place`: team/project. `base`: the base as W&B Inference names it, where the run has another name for it."""
        self.place = place.rstrip("/")
        team, _, project = self.place.partition("/")
        if not team or not project or "/" in project:
            raise DeployError(
                f"{place!r} is no project of W&B", "Give wandb:TEAM/PROJECT; a personal account has none."
            )
        self._project = {"entity": team, "project": project}
        self._base = base

    def check(self, adapter: AdapterFacts) -> list[str]:
        found = find_misfits("W&B Inference", adapter, ranks=_RANKS)
        if not self._base and adapter.base_model not in _BASES:
            found.append(
                f"its base is {adapter.base_model}; W&B Inference takes adapters of {', '.join(_BASES)}; of another "
                "one that it has taken since: --set base=NAME"
            )
        return found

    @asynccontextmanager
    async def plan(self, record: DeploymentRecord, report: Report) -> AsyncGenerator[Plan]:
        adapter, alias = record.adapter, f"step{record.adapter.step}"
        artifact = f"{self.place}/{record.remote_name}:{alias}"

        def api() -> Any:
            import wandb

            return wandb.Api(overrides=self._project, timeout=60)

        def log() -> None:
            import wandb

            base = {"wandb.base_model": self._base or adapter.base_model}
            made = wandb.Artifact(record.remote_name, type="lora", metadata=base, storage_region=_REGION)
            for file in adapter.files():
                made.add_file(str(file), policy="immutable", skip_cache=True)
            settings = wandb.Settings(
                mode="online",  # WANDB_MODE is for metrics
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                init_timeout=_START_SECONDS,
                reinit="create_new",  # a run of the trainer may be open
            )
            run: dict[str, Any] = {**self._project, "id": record.remote_name, "job_type": "deploy"}
            with (
                TemporaryDirectory(prefix="gavel-wandb-", ignore_cleanup_errors=True) as scratch,
                wandb.init(**run, dir=scratch, settings=settings) as opened,
            ):
                opened.log_artifact(made, aliases=[alias]).wait(timeout=_UPLOAD_SECONDS)

        resource = Resource(
            artifact,
            find=lambda: self._call(lambda: api().artifact_exists(artifact, type="lora") or None),
            make=lambda: self._call(log),
            remove=lambda: self._call(lambda: api().artifact(artifact, type="lora").delete(delete_aliases=True)),
        )
        yield Plan([resource], lambda: (_INFERENCE, f"wandb-artifact:///{artifact}"))

    def costs(self, record: DeploymentRecord) -> str:
        return (
            "W&B Inference: billed by token (prices: wandb.ai/site/pricing/inference), nothing while it is idle but "
            "the artifact's storage"
        )

    async def _call(self, call: Callable[[], T]) -> T:
        key = key_of(self.key_variable, "Take one from wandb.ai/authorize, and set it in .env.")
        try:
            from wandb.errors import Error
        except ImportError as error:
            raise DeployError("wandb is not installed, which this host needs", install_line("train")) from error
        try:
            return await asyncio.to_thread(call)
        except (Error, ValueError, OSError, TimeoutError) as error:
            said = without_secrets((str(error).strip().splitlines() or [type(error).__name__])[0], {"KEY": key})
            raise DeployError(
                f"W&B: {said}", f"Check {self.key_variable} and the team's project {self.place}. {GOES_ON}"
            ) from error


open_host = WandbHost
