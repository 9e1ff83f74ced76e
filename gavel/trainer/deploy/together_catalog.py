"""How Together serves a base model with adapters: the profile, the GPUs and their price."""

from dataclasses import dataclass
from typing import Any

from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.errors import DeployError

_MODES = ("ADAPTER_MODE_DYNAMIC", "ADAPTER_MODE_FIXED")
"""Deployments that load adapters, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base model of the catalogue, with the profile that is deployed."""

    base_model_id: str
    model: str
    """Resource name of what is deployed."""
    config: str
    """Resource name of the config revision."""
    hardware: str
    price: str
    """In a few words; says so where it is not known."""


async def find_base(client: Any, adapter: AdapterFacts, config: str) -> Base:
    """The base model of an adapter; `config` chooses among its profiles. Raises `DeployError` with what would do."""
    search = adapter.base_model.rpartition("/")[2]
    wanted: Any = None
    others: list[str] = []
    async for each in client.models.list_supported(search=search, product="PRODUCT_DEDICATED"):
        if str(each.name).lower() == adapter.base_model.lower():
            wanted = each
            break
        others.append(str(each.name))
    if wanted is None:
        near = f"It has {', '.join(others[:5])}." if others else "See `tg models list-supported`."
        raise DeployError(f"Together's catalogue has no {adapter.base_model} for dedicated inference", near)
    profiles = [each for each in wanted.deployment_profiles or () if each.adapter_mode in _MODES]
    if not profiles:
        raise DeployError(
            f"Together serves {adapter.base_model} without adapters",
            "Train another base, or deploy elsewhere: gavel deploy RUN vllm:http://HOST:PORT",
        )
    chosen = [each for each in profiles if not config or config in (each.profile_id, each.config.rpartition("/")[2])]
    if not chosen:
        there = ", ".join(str(each.profile_id) for each in profiles)
        raise DeployError(f"{adapter.base_model} has no config {config!r}", f"It has: {there}.")
    profile = min(chosen, key=lambda each: (_MODES.index(each.adapter_mode), each.gpu_count))
    return Base(
        base_model_id=wanted.base_model_id or wanted.id,
        model=profile.model,
        config=profile.config,
        hardware=f"{profile.gpu_count} × {profile.gpu_type}",
        price=await _price(client, profile.gpu_type, profile.gpu_count),
    )


async def _price(client: Any, gpu_type: str, gpu_count: int) -> str:
    listed = await client.endpoints.hardware.list()
    for each in listed.data or ():
        if gpu_type in (each.gpu_type, each.id) and each.gpu_count == gpu_count:
            return f"{each.price_cents_per_hour / 100:.2f} USD an hour for each replica while it runs"
    return "the price per hour is not known here (see Together's console)"
