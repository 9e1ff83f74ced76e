"""The policy: a frozen base model, a LoRA adapter over it, and their tokenizer and chat renderer.

Only the adapter's weights ever change; its layers: `lora_layers.py`.

A base that does not fit one device is sharded over processes (FSDP2): each keeps its part of every decoder layer and
gathers a layer while it is computed, so all make the same number of passes. Adapter, embeddings and head are
replicated, so updates are unchanged. A base that does not fit into memory is refused by its config, before minutes of
loading.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import torch
import torch.distributed as dist
from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from peft import PeftModel, load_peft_weights
from peft.tuners.lora import LoraLayer
from renderers import Renderer
from safetensors import SafetensorError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.device_memory import GIB, DeviceMemory
from gavel.trainer.embedded import EMBEDDED, embedded_path
from gavel.trainer.embedded.small_model import SMALL_MODEL, no_progress_bar, small_model_path
from gavel.trainer.kernels.attention_kernels import Span
from gavel.trainer.kernels.fused_layers import (
    fuse_mlps,
    fuse_norms,
)
from gavel.trainer.kernels.liger import liger_is_used, use_liger
from gavel.trainer.kernels.packed_attention import AttentionError, attend_packed
from gavel.trainer.policy.adapter import LoraFactors
from gavel.trainer.policy.adapters import adapted_weights, adapter_misfit
from gavel.trainer.policy.chat_format import chat_renderer, rendering_by
from gavel.trainer.policy.loading import (
    FETCH_AGAIN,
    BaseModelError,
    add_unsloth_adapter,
    auto_class,
    check_settings,
    copy_sharing_weights,
    dtype_of,
    explain_wrong_name,
    load_unsloth_base,
    load_whole,
    model_class,
    prepare_4bit_layers,
    quantization_config,
    text_decoder,
    usable_context,
    what_transformers_says,
    why_alone,
)
from gavel.trainer.policy.lora_layers import add_adapter


def storage_bytes(model: torch.nn.Module) -> int:
    """Bytes of parameters and buffers; tied ones count once."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum({id(each): each.nbytes for each in tensors}.values())


def check_room(base_model: str, config: Any, dtype: torch.dtype, device: str) -> None:
    """Raises `BaseModelError` when the weights in `dtype` are larger than the free memory of the device.

    Nothing is said of weights that are published quantized, whose size the config does not tell.
    """
    if getattr(config, "quantization_config", None) is not None:
        return
    with torch.device("meta"):
        needed = storage_bytes(auto_class(config).from_config(config, dtype=dtype))
    free = DeviceMemory(torch.device(device)).free()
    if needed > free:
        where = "of the GPU's memory is" if device == "cuda" else "of memory is"
        less = "" if dtype == torch.bfloat16 else " --set model.policy.dtype=bfloat16 and"
        raise BaseModelError(
            f"the weights of {base_model!r} take {needed / GIB:.1f} GiB in {str(dtype).removeprefix('torch.')}, and "
            f"{free / GIB:.1f} GiB {where} free",
            f"`gavel plan {base_model}` tells what fits;{less} --quantization 4bit need less.",
        )


def load_sharded_base(source: str, config: Any, dtype: torch.dtype, device: str) -> Any:
    """The base model of `source`, frozen, whose decoder layers are sharded over all processes.

    Its layers are sharded while they have no storage, so transformers reads of each tensor what this process keeps.
    Raises OSError or ValueError when there is no such model.
    """
    kind, config = model_class(config)

    def on_meta(model: Any, *arguments: Any, **options: Any) -> None:
        kind.__init__(model, *arguments, **options)
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        decoder = text_decoder(model.requires_grad_(False))
        layers = _layers(decoder)
        whole = set(model.parameters()) - {p for layer in layers for p in layer.parameters()}
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
        # It has no parameters of its own, but sets the order of the layers.
        fully_shard(decoder, mesh=mesh, ignored_params=whole)

    sharding = type(kind.__name__, (kind,), {"__init__": on_meta, "__module__": kind.__module__})
    own = f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device
    model: Any = sharding.from_pretrained(source, config=config, dtype=dtype, device_map=own)
    model.__class__ = kind
    return model


def whole_parts(model: Any) -> Iterator[torch.nn.Module]:
    """Every layer of a sharded base while its weights are whole, in all processes at once; then what is not sharded."""
    layers = _layers(text_decoder(model))
    for layer in layers:
        layer.unshard()
        yield layer
        layer.reshard()
    inside = {module for layer in layers for module in layer.modules()}
    yield torch.nn.ModuleList(each for each in model.modules() if each not in inside and not [*each.children()])


def _layers(decoder: Any) -> list[Any]:
    return [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]


logger = logging.getLogger(__name__)

_HUB_SECONDS = 20.0
_NAMES = f"Name a directory, a model of the Hugging Face hub, {', '.join((SMALL_MODEL, *EMBEDDED))}."

LoadBase = Callable[[str, torch.dtype, str], Any]
"""Name, type and device -> a frozen model of transformers."""
DEFAULT_SETTINGS = PolicySettings()


class Policy:
    """Base model + LoRA (PEFT, or Unsloth) on one device."""

    keeps_attention = False
    """True if gradient checkpointing keeps attention outputs, the most expensive to recompute."""

    def __init__(
        self,
        base_model: str,
        lora: LoraSettings,
        renderer: str | None = None,
        settings: PolicySettings = DEFAULT_SETTINGS,
        *,
        load: LoadBase | None = None,
        sharded: bool = False,
    ) -> None:
        """`base_model`: `embedded/returns-desk`, a directory, or a model id of the hub.

        `renderer` names the chat format of the `renderers` library, for a model that it does not know by name. `load`
        makes a base that is not sharded, by default `load_base`; the tokenizer is always that of `base_model`.
        `sharded` shards the base over all processes. Raises `BaseModelError`.
        """
        check_settings(settings, lora, sharded)
        device = _device()
        with_liger = liger_is_used(settings, device, sharded)
        self.dtype = dtype_of(settings, device)
        self.lora = lora
        config, source = load_config(base_model), source_of(base_model)
        self.max_context = usable_context(config)
        """Tokens of a sequence."""
        alone = why_alone(config)
        if sharded and alone is not None:
            raise _unsharded(config, alone)
        with naming_base(base_model):
            self.tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        self._stop_ids = _stop_ids(source)
        self._chat_template_kwargs = settings.chat_template_kwargs
        self.renderer = chat_renderer(
            self.tokenizer, config.model_type, renderer, base_model, settings.chat_template_kwargs, self._stop_ids
        )
        with naming_base(base_model):
            if settings.loader == "unsloth":
                base = load_unsloth_base(source, settings, self.dtype, device)
            elif load is not None:
                base = load(base_model, self.dtype, device)
            elif sharded:
                base = load_sharded_base(source, config, self.dtype, device)
            else:
                if settings.quantization is None:
                    check_room(base_model, config, self.dtype, device)
                base = load_base(base_model, self.dtype, device, settings.quantization)
        self.vocabulary: int = base.get_input_embeddings().num_embeddings
        needed = 1 + max(self.tokenizer.vocab_size - 1, *self.renderer.get_stop_token_ids())
        if needed > self.vocabulary:
            raise BaseModelError(
                f"the tokenizer of {base_model!r} does not fit the model: it needs {needed} tokens, "
                f"the model has {self.vocabulary}",
                "Use the tokenizer that the model was trained with.",
            )
        self.parameter_count: int = base.num_parameters()
        self._plain = None if sharded or settings.loader == "unsloth" else copy_sharing_weights(base)
        self._saving = threading.Lock()
        self.sharded = sharded
        for part in whole_parts(base) if sharded else [base]:
            fuse_norms(part)
            if settings.loader == "peft":
                fuse_mlps(part)
        if with_liger:
            logger.info("Liger's kernels compute %s", use_liger(base, least=bool(settings.use_liger_kernel)))
        add = add_unsloth_adapter if settings.loader == "unsloth" else add_adapter
        self.model: PeftModel = add(base, lora)
        self.model.eval()
        self.spans: Sequence[Span] | None = None
        """The attention span of each layer; None if its attention cannot compute a shared prefix once."""
        if settings.loader == "unsloth":
            return
        if alone is None:
            try:
                self.spans = attend_packed(self.decoder())
            except AttentionError as error:
                alone = error.message
                if sharded:
                    raise _unsharded(config, alone) from error
        if alone is not None:
            told = "%s is trained one sequence at a time, which is exact, but slower: %s."
            logger.warning(told, config.model_type, alone)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def device_kind(self) -> str:
        """`cuda` or `cpu`."""
        return "cuda" if self.device.type == "cuda" else "cpu"

    def parameters(self) -> list[torch.nn.Parameter]:
        """The adapter's parameters; no others are trained."""
        return [parameter for _, parameter in self.adapter_parameters()]

    def rendering_by(self, chat_template_kwargs: Mapping[str, Any]) -> Renderer:
        """The renderer with these arguments of the chat template over the model's own. Raises `ChatFormatError`."""
        kwargs = {**self._chat_template_kwargs, **chat_template_kwargs}
        if kwargs == self._chat_template_kwargs:
            return self.renderer
        return rendering_by(self.renderer, self.tokenizer, kwargs, self._stop_ids)

    def adapter_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """`parameters` with their names in a PEFT adapter's file."""
        named = self.model.named_parameters()
        return ((name.replace(".default.", "."), parameter) for name, parameter in named if parameter.requires_grad)

    def adapter_weights(self) -> list[torch.Tensor]:
        """Copies of `parameters` in the memory of the CPU."""
        return [parameter.detach().cpu().clone() for parameter in self.parameters()]

    @torch.no_grad()
    def set_adapter_weights(self, weights: Sequence[torch.Tensor]) -> None:
        """Copies `weights` into `parameters`, in their order."""
        for parameter, weight in zip(self.parameters(), weights, strict=True):
            parameter.copy_(weight)

    @property
    def lora_scale(self) -> float:
        """The adapter's LoRA scale, the same in every layer."""
        return next(m.scaling["default"] for m in self.model.modules() if isinstance(m, LoraLayer))

    @contextlib.contextmanager
    def with_weights(self, weights: Sequence[torch.Tensor] | None) -> Iterator[None]:
        """The policy with other weights of its adapter, in the order of `parameters`; None: the base alone.

        Tensor pointers are exchanged, so nothing that keeps a graph may be computed inside.
        """
        if weights is None:
            with self.model.disable_adapter():
                yield
            return
        parameters = self.parameters()
        own = [parameter.data for parameter in parameters]
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data = weight
        try:
            yield
        finally:
            for parameter, weight in zip(parameters, own, strict=True):
                parameter.data = weight

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the tokens, including special ones."""
        return self.tokenizer.decode(list(token_ids))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those that the tokenizer puts before every text."""
        return self.tokenizer.encode(text)

    def plain_model(self) -> Any:
        """The base model without the adapter, for a sampler in this process: an instance over the same storage.

        The same one at every call; not there for a base that is sharded or Unsloth's.
        """
        if self._plain is None:
            raise BaseModelError("this base has no plain instance in this process", "Sample with --engine vllm.")
        return self._plain

    def decoder(self) -> Any:
        """The transformer without its vocabulary head; the adapter is active in it."""
        return text_decoder(self.model.get_base_model())

    def head(self) -> torch.nn.Linear:
        """The vocabulary head, frozen."""
        return self.model.get_base_model().get_output_embeddings()  # type: ignore[operator]

    def checkpoint_gradients(self, on: bool) -> None:
        """Switches gradient checkpointing: recomputing a layer's activations instead of keeping them."""
        self.keeps_attention = on
        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.gradient_checkpointing = layer.training = on  # the layer alone: its submodules stay in eval mode
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # type: ignore[assignment]

    def merged_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The adapted weights (base + scale * B A) by their names in the plain model."""
        for each in adapted_weights(self.model.get_base_model()):
            yield each.name, (each.weight + each.delta().to(each.weight.dtype)).detach()

    def factors(self) -> Iterator[LoraFactors]:
        """Copies of A, B and their scale, weight by weight."""
        return (each.factors() for each in adapted_weights(self.model.get_base_model()))

    def save_adapter(self, directory: Path) -> None:
        """A PEFT adapter that any other program can load. Several samplers may ask for it at once."""
        with self._saving:  # PEFT changes the model's settings meanwhile
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "README.md").write_text("---\nlibrary_name: peft\n---\n")  # of an empty one PEFT warns
            self.model.save_pretrained(str(directory))

    def load_adapter(self, directory: Path) -> None:
        """Loads the weights that `save_adapter` wrote."""
        weights = load_peft_weights(str(directory), device=str(self.device))
        if (misfit := adapter_misfit(self, weights)) is not None:
            raise BaseModelError(
                f"the adapter in {directory} does not fit this base model ({misfit})",
                "Train under another name, or with the base model and rank that the run began with.",
            )
        self.set_adapter_weights([weights[name] for name, _ in self.adapter_parameters()])


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def naming_base(base_model: str) -> Iterator[None]:
    """Raises `BaseModelError` for what transformers raises for unreadable model files."""
    try:
        yield
    except StrictDataclassError as error:
        wrong = " ".join(str(error).split())
        raise BaseModelError(f"the config of {base_model!r} is wrong: {wrong}", FETCH_AGAIN) from error
    except (AttributeError, ImportError, KeyError, OSError, ValueError, SafetensorError) as error:
        said, remedy = what_transformers_says(error)
        remedy = remedy or (FETCH_AGAIN if Path(base_model).is_dir() else _NAMES)
        raise BaseModelError(f"the base model {base_model!r} cannot be loaded: {said}", remedy) from error


def load_config(base_model: str) -> Any:
    """The config of the base model. Raises `BaseModelError`."""
    check_exists(base_model)
    with naming_base(base_model):
        # None would ask at the terminal
        return AutoConfig.from_pretrained(source_of(base_model), trust_remote_code=False)


def _unsharded(config: Any, reason: str) -> BaseModelError:
    """Processes would make different numbers of passes."""
    return BaseModelError(
        f"{config.model_type} is trained one sequence at a time ({reason}), so its base cannot be sharded",
        "Leave out shard_base: each process then holds the base.",
    )


def load_base(
    base_model: str, dtype: torch.dtype, device: str | torch.device, quantization: Literal["4bit"] | None = None
) -> Any:
    """An instance of the base model, frozen.

    Raises OSError or ValueError when there is none, `BaseModelError` when it cannot be quantised, or when its files do
    not hold all of its weights.
    """
    config = AutoConfig.from_pretrained(source_of(base_model), trust_remote_code=False)
    quantized = quantization_config(quantization, dtype, config)
    extra = {} if quantized is None else {"quantization_config": quantized}
    with no_progress_bar() if base_model in EMBEDDED else contextlib.nullcontext():
        kind = auto_class(config)
        base = load_whole(kind, source_of(base_model), dtype=dtype, device_map=device, **extra)
    prepare_4bit_layers(base)
    return base.requires_grad_(False)


def source_of(base_model: str) -> str:
    """The path or model id for transformers. Raises `SmallModelError` when the small real model cannot be had."""
    if base_model == SMALL_MODEL:
        return str(small_model_path(logger.warning))
    return str(embedded_path(base_model)) if base_model in EMBEDDED else base_model


def check_exists(base_model: str) -> None:
    """Asks the hub once; transformers would retry for a minute before it reports a missing model."""
    source = source_of(base_model)
    if wrong := explain_wrong_name(source, (SMALL_MODEL, *EMBEDDED)):
        raise BaseModelError(f"{base_model!r} is no base model: {wrong[0]}", wrong[1])
    try:
        if Path(source).is_dir() or constants.HF_HUB_OFFLINE or try_to_load_from_cache(source, "config.json"):
            return
    except HFValidationError:
        raise BaseModelError(f"the base model {base_model!r} is neither a directory nor a model id", _NAMES) from None
    try:
        answer = httpx.head(f"{constants.ENDPOINT}/api/models/{source}", timeout=_HUB_SECONDS, follow_redirects=True)
    except httpx.HTTPError as error:
        raise BaseModelError(
            f"the base model {base_model!r} is neither here nor in the cache, and the hub cannot be reached: {error}",
            _NAMES,
        ) from error
    if answer.status_code in (400, 401, 404):
        raise BaseModelError(f"the hub has no model {base_model!r} (or it needs HF_TOKEN)", _NAMES)


def _stop_ids(source: str) -> list[int]:
    """The tokens that end a reply, by the model's generation config; empty where it has none."""
    try:
        found = GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:
        return []
    return [found] if isinstance(found, int) else list(found or ())
