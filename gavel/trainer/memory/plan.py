"""Memory plan of a run, from the base model's config alone, and the options that reduce it.

    plan = make_plan("Qwen/Qwen3-8B", RunConfig(…), Device("cuda", 80 * GIB))
    plan.fits, plan.micro_batch_tokens
    plan.remedies       ["--max-context 2048: it fits", "--quantization 4bit: saves 0.31 of the 1.20 GiB missing"]

Each remedy is planned before it is named, with the mildest value that makes the run fit, else with the one that saves
most.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gavel.trainer.config import VllmSettings
from gavel.trainer.device_memory import GIB
from gavel.trainer.learner.step_bytes import checkpoints_by_default
from gavel.trainer.memory.needs import Device as Device
from gavel.trainer.memory.needs import MemoryNeeds, Needs
from gavel.trainer.policy.loading import published_quantization
from gavel.trainer.run_config import RunConfig

_TOKENS = [2**power for power in range(17, 7, -1)]
"""Values of an option that are tried."""
_PROCESSES = 2, 4, 8
_SERVER = "http://HOST:8000"
_ELSEWHERE = " (a vLLM server elsewhere)"


def size(count: int) -> str:
    """`3.20 GiB`, or `12.4 MiB` of what is small."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count * 1024 / GIB:,.2f} MiB"


def _remedies(needs: MemoryNeeds, run: RunConfig) -> list[str]:
    lacking = needs.of(run).missing
    found: list[str] = []
    fits = False
    for note, options in _choices(needs, run):
        least, text = lacking, ""
        for each, changed in options.items():
            if (left := needs.of(changed).missing) < least:
                least, text = left, each
            if not left:
                break
        if text:
            saved = f"saves {size(lacking - least)} of the {size(lacking)} missing" if least else "it fits"
            found.append(f"{text}: {saved}{note}")
            fits = fits or not least
    return found if fits else [*found, "Several of these, a device with more memory, or a smaller base model."]


def _choices(needs: MemoryNeeds, run: RunConfig) -> Iterator[tuple[str, dict[str, RunConfig]]]:
    """A note, and the runs by the option that makes them, the mildest first; the least costly choice first."""
    now, policy, backend, on_gpu = needs.of(run), needs.policy(run), run.backend, needs.device.kind == "cuda"
    elsewhere = VllmSettings(urls=(_SERVER,))

    def changed(table: str, **values: Any) -> RunConfig:
        return run.model_copy(update={table: getattr(run, table).model_copy(update=values)})

    def tokens(table: str, name: str, most: int) -> tuple[str, dict[str, RunConfig]]:
        option = f"--{name.replace('_', '-')}"
        return "", {f"{option} {value}": changed(table, **{name: value}) for value in _TOKENS if value < most}

    if not now.checkpointing:
        yield "", {"--gradient-checkpointing": changed("train", gradient_checkpointing=True)}
    yield tokens("train", "micro_batch_tokens", run.train.micro_batch_tokens or 0)
    yield tokens("backend", "max_context", now.context)
    if on_gpu and now.sampler_bytes and backend.engine != "transformers":
        vllm = backend.engine if isinstance(backend.engine, VllmSettings) else VllmSettings()
        sleeping = changed("backend", engine=vllm.model_copy(update={"sleep": True}))
        note = " (vLLM hands its memory over while the learner computes)"
        yield note, {"--set backend.engine.sleep=true": sleeping}
    elif on_gpu and now.sampler_bytes:
        yield _ELSEWHERE, {f"--engine {_SERVER}": changed("backend", engine=elsewhere)}
    quantized = run.model.policy.quantization is not None or published_quantization(needs.config) is not None
    if not quantized and not backend.shard_base:
        four_bits = run.model.policy.model_copy(update={"quantization": "4bit"})
        note = f" (the base takes {size(policy.quantized_bytes)})"
        yield note, {"--quantization 4bit": changed("model", policy=four_bits)}
    if on_gpu and not policy.largest_dequantized and policy.spans is not None:
        yield (
            _ELSEWHERE,
            {
                f"--shard-base --nproc {count} --engine {_SERVER}": changed(
                    "backend", shard_base=True, processes=count, engine=elsewhere
                )
                for count in _PROCESSES
                if not backend.shard_base or count > backend.processes
            },
        )


@dataclass(frozen=True, slots=True)
class MemoryPlan(Needs):
    """The plan of a run, in bytes unless a name says otherwise."""

    model: str
    family: str
    device: str
    device_bytes: int
    dtype: str
    quantization: str | None
    published: str | None
    """The quantization of the published weights, such as gptq; they are counted as if they were of `dtype`."""
    parameters: int
    adapter_parameters: int
    adapted_layers: int
    pass_checkpointed: int
    """A pass of the learner over `longest`, with gradient checkpointing."""
    pass_whole: int
    """The same pass without gradient checkpointing."""
    whole_pass_tokens: int | None
    """Max tokens of a pass without checkpointing; larger passes use it. None: all or none."""
    fits: bool
    remedies: list[str]
    """Options to set, the least costly first, each with its saving."""


def make_plan(base_model: str, run: RunConfig, device: Device) -> MemoryPlan:
    """Raises `BaseModelError` for a model whose config cannot be read or that cannot be trained."""
    needs = MemoryNeeds(base_model, device)
    policy, found = needs.policy(run), needs.of(run)
    train = run.train
    passes = {on: needs.passes(policy, on) for on in (True, False)}
    whole = passes[False].tokens(found.left) if train.whole_pass_tokens is None else train.whole_pass_tokens
    by_size = train.gradient_checkpointing is None and checkpoints_by_default(device.kind) is None
    return MemoryPlan(
        **asdict(found),
        model=base_model,
        family=needs.config.model_type,
        device=device.kind,
        device_bytes=device.total,
        dtype=str(policy.dtype).removeprefix("torch."),
        quantization=run.model.policy.quantization,
        published=published_quantization(needs.config),
        parameters=policy.parameter_count,
        adapter_parameters=sum(parameter.numel() for parameter in policy.parameters()),
        adapted_layers=len(policy.parameters()) // 2,
        pass_checkpointed=passes[True].of(found.longest) - 3 * found.adapter,
        pass_whole=passes[False].of(found.longest) - 3 * found.adapter,
        whole_pass_tokens=min(whole, found.micro_batch_tokens) if by_size else None,
        fits=not found.missing,
        remedies=_remedies(needs, run) if found.missing else [],
    )
