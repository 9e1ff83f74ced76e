"""Memory plan of a run, from the base model's config alone, and the options that reduce it.

    plan = make_plan("Qwen/Qwen3-8B", RunConfig(…), Device("cuda", 80 * GIB))
    plan.fits, plan.micro_batch_tokens
    plan.remedies       ["--max-context 2048: it fits", "--quantization 4bit: saves 0.31 of the 1.20 GiB missing"]

Each remedy is planned before it is named, with the mildest value that makes the run fit, else with the strongest. Where
no single one is enough, the strongest of each are added one after the other until the run fits.
"""

from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Any

from gavel.trainer.device_memory import GIB
from gavel.trainer.learner.step_bytes import checkpoints_by_default
from gavel.trainer.memory.needs import Device as Device
from gavel.trainer.memory.needs import MemoryNeeds, Needs
from gavel.trainer.policy.loading import published_quantization
from gavel.trainer.run_config import RunConfig, engine_table

_STEP = 256
"""Tokens between two values of an option."""
_PROCESSES = 2, 4, 8
_SERVER = "http://HOST:8000"
_ELSEWHERE = " (a vLLM server elsewhere)"


@dataclass(frozen=True, slots=True)
class Option:
    """Options as they are typed, and what they set."""

    text: str
    sets: dict[str, Any]
    """Values by their paths, as `backend.max_context`."""
    note: str = ""

    def over(self, run: RunConfig) -> RunConfig:
        """The run with what is set."""
        tables: Any = run.model_dump(exclude_unset=True)
        for path, value in self.sets.items():
            (*above, name), table = path.split("."), tables
            for part in above:
                inner: Any = engine_table(table.get(part, {}))
                table[part] = table = inner
            table[name] = value
        return RunConfig.model_validate(tables)


def remedies(needs: MemoryNeeds, run: RunConfig) -> list[str]:
    """The options that make a run fit, each with its saving; last, a combination if no single one is enough."""

    def missing(option: Option) -> int:
        return needs.of(option.over(run)).missing

    lacking = needs.of(run).missing
    found: list[str] = []
    fits_alone = False
    for options in _choices(needs, run):
        if not options or (least := missing(options[-1])) >= lacking:
            continue
        # The mildest that leaves no more missing than the strongest.
        at = bisect_left(options, True, hi=len(options) - 1, key=lambda each: missing(each) <= least)
        left = missing(options[at])
        fits_alone = fits_alone or not left
        saved = f"saves {size(lacking - left)} of the {size(lacking)} missing" if left else "it fits"
        found.append(f"{options[at].text}: {saved}{options[at].note}")
    return found if fits_alone else [*found, _together(needs, run)]


def size(count: int) -> str:
    """`3.20 GiB`, or `12.4 MiB` of what is small."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count * 1024 / GIB:,.2f} MiB"


def _together(needs: MemoryNeeds, run: RunConfig) -> str:
    chosen: list[Option] = []
    for number in range(len(_choices(needs, run))):
        # One that does not help yet may with those after it: a pass is as long as its micro-batch or its context.
        if options := _choices(needs, run)[number]:
            chosen.append(options[-1])
            run = options[-1].over(run)
        if not needs.of(run).missing:
            notes = "".join(dict.fromkeys(option.note for option in chosen))
            return f"{' '.join(option.text for option in chosen)}: together, it fits{notes}"
    return "A device with more memory, or a smaller base model."


def _choices(needs: MemoryNeeds, run: RunConfig) -> list[list[Option]]:
    """For each option, the least costly one first, the values that may need less than the run's, the mildest first."""
    now, policy, backend, on_gpu = needs.of(run), needs.policy(run), run.backend, needs.device.kind == "cuda"
    checkpointing, four_bits, sampler, shards = (list[Option]() for _ in range(4))
    if not now.checkpointing:
        checkpointing = [Option("--gradient-checkpointing", {"train.gradient_checkpointing": True})]
    micro_batch = _tokens("--micro-batch-tokens", "train.micro_batch_tokens", run.train.micro_batch_tokens or 0)
    context = _tokens("--max-context", "backend.max_context", now.context)
    if on_gpu and now.sampler_bytes and backend.engine != "transformers":
        note = " (vLLM hands its memory over while the learner computes)"
        sampler = [Option("--set backend.engine.sleep=true", {"backend.engine.sleep": True}, note)]
    elif on_gpu and now.sampler_bytes:  # the embedded engine's part is done elsewhere
        sampler = [Option(f"--engine {_SERVER}", {"backend.engine": _SERVER}, _ELSEWHERE)]
    quantized = run.model.policy.quantization is not None or published_quantization(needs.config) is not None
    if not quantized and not backend.shard_base:
        note = f" (the base takes {size(policy.quantized_bytes)})"
        four_bits = [Option("--quantization 4bit", {"model.policy.quantization": "4bit"}, note)]
    if on_gpu and not policy.largest_dequantized and policy.spans is not None:
        shards = [
            Option(
                f"--shard-base --nproc {count} --engine {_SERVER}",
                {"backend.shard_base": True, "backend.processes": count, "backend.engine": _SERVER},
                _ELSEWHERE,
            )
            for count in _PROCESSES
            if not backend.shard_base or count > backend.processes
        ]
    return [checkpointing, micro_batch, context, sampler, four_bits, shards]


def _tokens(name: str, path: str, most: int) -> list[Option]:
    values = range((most - 1) // _STEP * _STEP, _STEP - 1, -_STEP)
    return [Option(f"{name} {value}", {path: value}) for value in values]


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
    fitting_tokens: int
    """The largest micro-batch that fits."""
    fits: bool
    remedies: list[str]
    """Options to set, the least costly first, each with its saving."""


def make_plan(base_model: str, run: RunConfig, device: Device) -> MemoryPlan:
    """Raises `BaseModelError` for a model whose config cannot be read or that cannot be trained."""
    needs = MemoryNeeds(base_model, device)
    policy, found = needs.policy(run), needs.of(run)
    train = run.train
    passes = {on: needs.passes(run, checkpointing=on) for on in (True, False)}
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
        fitting_tokens=passes[found.checkpointing].tokens(found.left),
        fits=not found.missing,
        remedies=remedies(needs, run) if found.missing else [],
    )
