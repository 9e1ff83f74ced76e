"""Loading the base model: its precision, 4-bit quantization, and Unsloth instead of PEFT.

The settings decide the precision of the frozen weights; the adapter over them is always float32. The last third reads
in the config how a base model can be trained and sampled, before any weight is loaded: docs/models.md is the table of
the families that are tested; every other one gets the same checks.
"""

import copy
import difflib
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.kernels.attention_kernels import layer_spans


def explain_wrong_name(source: str, known: tuple[str, ...]) -> tuple[str, str] | None:
    """The problem with the name and its remedy; None if there is no known problem. `known`: the built-in models."""
    path = Path(source)
    if path.is_file():
        if path.suffix == ".gguf":
            return "it is a GGUF file, whose weights cannot be trained", _UNCONVERTED
        return "it is a file", f"Name the directory that holds it: {path.parent}"
    if path.is_dir() and not (path / "config.json").is_file():
        if (path / "adapter_config.json").is_file():
            base = ", ".join(filter(None, ("Name the base", adapter_base(path))))
            return "it is an adapter, without its base", f"{base}; --from-checkpoint adds it."
        if any(path.glob("*.gguf")):
            return "it holds GGUF files, whose weights cannot be trained", _UNCONVERTED
        return "it is a directory without a config.json", "Name the directory that holds the model's own files."
    if source.startswith(("http://", "https://", "hf://")):
        name = "/".join(source.split("://", 1)[1].removeprefix("huggingface.co/").split("/")[:2])
        return "it is an address", f"Name the model as the hub does: {name}"
    if near := difflib.get_close_matches(source, known, 1, 0.8):
        return "there is no such built-in model", f"Did you mean {near[0]}?"
    return None


def what_transformers_says(error: Exception) -> tuple[str, str]:
    """Why a model cannot be loaded, in a line, and what to do, where that is known."""
    said = str(error).strip().splitlines()[0]
    if "trust_remote_code" in str(error):
        return "it brings code of its own, which is not run", "Choose a base that transformers has itself."
    if isinstance(error, ImportError):
        return f"its weights are quantized in a form that needs more: {said}", UNQUANTIZED
    if isinstance(error, AttributeError | KeyError):
        return f"its config says what transformers does not know: {type(error).__name__}: {said}", FETCH_AGAIN
    if "does not recognize this architecture" in said:
        return said.partition(". This could")[0], "pip install --upgrade transformers, or choose another base."
    return said, ""


UNQUANTIZED = "Choose the model that it was quantized from; --quantization 4bit holds that one in 4 bits."
_UNCONVERTED = "Name the model that it was made of, as the hub calls it: a directory with config.json and safetensors."


def adapter_base(directory: Path) -> str:
    """The base model that the adapter's own config names; empty where it names none, or cannot be read."""
    try:
        config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(config.get("base_model_name_or_path") or "") if isinstance(config, dict) else ""


FETCH_AGAIN = "Fetch its files again, or mend its config.json."
"""The remedy for a directory whose files are damaged or do not fit together."""
_BLOCK = 64
"""Weights that share a quantization scale."""


class BaseModelError(GavelError):
    """The base model cannot be loaded, or nothing can render its chats."""


def check_settings(settings: PolicySettings, lora: LoraSettings, sharded: bool) -> None:
    """Raises `BaseModelError` for settings of which one excludes another."""
    whole_only = {"loader": "peft", "quantization": None, "use_liger_kernel": settings.use_liger_kernel and None}
    if sharded and settings != settings.model_copy(update=whole_only):
        raise BaseModelError(
            "a base that is sharded over several processes can be neither Unsloth's, nor quantized, nor Liger's",
            f"Leave {', '.join(whole_only)} out of PolicySettings, or leave out shard_base.",
        )
    if settings.loader == "unsloth" and (lora.targets or lora.dropout or lora.experts):
        raise BaseModelError(
            "Unsloth's kernels adapt all linear layers and no experts, without dropout",
            "Leave targets, experts and dropout out of LoraSettings, or loader out of PolicySettings.",
        )
    if lora.experts and lora.dropout:
        raise BaseModelError("an adapter of experts has no dropout", "Leave out --lora-dropout or --lora-experts.")


_CHECKED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def dtype_of(settings: PolicySettings, device: str) -> torch.dtype:
    """The type of the frozen weights and of the computation with them."""
    if settings.dtype == "auto":
        return torch.bfloat16 if device == "cuda" else torch.float32
    return getattr(torch, settings.dtype)


def published_quantization(config: Any) -> str | None:
    """The quantization of a base model's own files: gptq, fp8, …; None if they are not quantized."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else getattr(given, "quant_method", None)
    return str(getattr(method, "value", method) or "quantized")


def quantization_config(
    quantization: Literal["4bit"] | None, dtype: torch.dtype, config: Any = None
) -> BitsAndBytesConfig | None:
    """NF4 with quantized constants (QLoRA, arXiv 2305.14314), computing in `dtype`; None for no quantization.

    Raises `BaseModelError` without bitsandbytes, and for a base whose `config` says that it is quantized already.
    """
    if quantization is None:
        return None
    if (published := published_quantization(config)) is not None:
        raise BaseModelError(
            f"the weights of this base model are quantized already, by {published}",
            f"Leave out --quantization {quantization}. {UNQUANTIZED}",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise BaseModelError(
            "quantization='4bit' needs bitsandbytes, which is not installed",
            "pip install bitsandbytes (the extra gpu brings it), or leave quantization out of PolicySettings.",
        )
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def prepare_4bit_layers(model: Any) -> None:
    """Makes the 4-bit layers of a model on a CPU compute exactly, with a gradient; other models stay as they are.

    On CPUs with AVX512-BF16, bitsandbytes 0.50 repacks a layer's weights in its first pass without a gradient. From
    then on the layer computes in bfloat16, whatever its dtype is, and passes no gradient to its input.

    Raises `BaseModelError` for rows that are not whole blocks: bitsandbytes scales them by other blocks' scales, and
    their weights come out a quarter off.
    """
    layers = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
    odd = next((layer.in_features for layer in layers if layer.in_features % _BLOCK), None)
    if odd is not None and model.device.type == "cpu":
        raise BaseModelError(
            f"on a CPU bitsandbytes cannot hold rows of {odd} weights in 4 bits, only multiples of {_BLOCK}",
            "Leave quantization out of PolicySettings, or use a GPU.",
        )


def auto_class(config: Any) -> Any:
    """The class of transformers that loads a model of this config: that of its architecture, if it has several.

    An adapter then names the layers as the checkpoint does, which servers go by. Raises `BaseModelError` for no
    language model.
    """
    mappings: Any = (
        (MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM),
        (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoModelForImageTextToText),
    )
    known = [(mapping[type(config)].__name__, auto) for mapping, auto in mappings if type(config) in mapping]
    if not known:
        raise BaseModelError(
            f"transformers has no causal language model for {config.model_type}", "Choose another base model."
        )
    return next((auto for name, auto in known if name in (config.architectures or ())), known[0][1])


def model_class(config: Any) -> tuple[Any, Any]:
    """The model class that `auto_class` loads, and its config. Raises `BaseModelError`."""
    kind = auto_class(config)._model_mapping[type(config)]
    inner = getattr(config, "sub_configs", {}).get("text_config")
    return kind, config.get_text_config() if kind.config_class is inner else config


def text_decoder(model: Any) -> Any:
    """The transformer of a causal language model, without vocabulary head, and without what reads images or sound.

    Raises `BaseModelError` where transformers gives something else for it.
    """
    decoder = model.get_decoder()
    found: Any = getattr(decoder, "model") if isinstance(decoder, GenerationMixin) else decoder  # noqa: B009
    if not isinstance(found, PreTrainedModel):
        raise BaseModelError(
            f"transformers does not tell the decoder of {model.config.model_type} from its head",
            "Choose another base model.",
        )
    return found


def plain_logits(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """Logits of the model's own forward pass, in its precision. `[B, T]` to `[B, T, V]`

    Llama 4 has a language model with its head inside one that reads images: transformers 5.24 fails in the outer pass.
    """
    inner = model.get_decoder()
    whole: Any = inner if isinstance(inner, GenerationMixin) else model
    return whole(input_ids=token_ids, use_cache=False).logits


def load_whole(kind: Any, source: str, **given: Any) -> Any:
    """The model that `kind.from_pretrained` loads from `source`.

    Raises `BaseModelError` for weights that its files lack, or have in another shape: transformers draws the first at
    random, anew at each loading; and for weights that are not finite.
    """
    # what does not fit is told here, by name
    model, found = kind.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **given)
    misfits: list[Any] = sorted(found["mismatched_keys"])
    for name, stored, wanted in misfits:
        misfit = f"{name} is {[*stored]}, and {[*wanted]} is asked for"
        raise BaseModelError(f"the weights of {source!r} do not fit its config: {misfit}", FETCH_AGAIN)
    weights = dict(model.named_parameters())
    missing = sorted({*found["missing_keys"]} & weights.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BaseModelError(f"the files of {source!r} lack the weight {missing[0]}{more}", FETCH_AGAIN)
    for name, weight in weights.items():
        if weight.dtype in _CHECKED and not weight.is_meta and not bool(weight.isfinite().all()):
            raise BaseModelError(f"the weight {name} of {source!r} is not finite", FETCH_AGAIN)
    return model


def is_quantized(model: Any) -> bool:
    """Whether its weights are stored quantized."""
    return getattr(model.config, "quantization_config", None) is not None


def copy_sharing_weights(model: Any) -> Any:
    """Another instance of a frozen model over the same storage: what one of them does to its layers, the other lacks.

    Its parameters are objects of its own, but for quantized ones, which carry how to read them.
    """
    kept: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        plain = type(parameter) is torch.nn.Parameter
        kept[id(parameter)] = torch.nn.Parameter(parameter.data, requires_grad=False) if plain else parameter
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        if state is not None:
            kept[id(state)] = state
    return copy.deepcopy(model, kept)


def load_unsloth_base(source: str, settings: PolicySettings, dtype: torch.dtype, device: str) -> Any:
    """The base model with Unsloth's kernels, loaded by exactly this name.

    Raises `BaseModelError` without Unsloth or a GPU, OSError or ValueError when there is no such model.
    """
    if device != "cuda":
        raise BaseModelError(
            "loader='unsloth' needs a CUDA device, and there is none", "Leave loader out of PolicySettings: PEFT runs."
        )
    quantization_config(settings.quantization, dtype)
    try:
        loader = importlib.import_module("unsloth").FastLanguageModel
    except ImportError as error:
        raise BaseModelError(
            f"loader='unsloth' cannot import Unsloth: {error}",
            f"{install_line('gpu')}, or leave loader out of PolicySettings: PEFT runs.",
        ) from error
    model, _ = loader.from_pretrained(
        model_name=source,
        max_seq_length=AutoConfig.from_pretrained(source).get_text_config().max_position_embeddings,
        dtype=dtype,
        load_in_4bit=settings.quantization == "4bit",
        use_exact_model_name=True,  # otherwise it loads its own quantized copy, which the sampler does not have
    )
    return model.requires_grad_(False)


def add_unsloth_adapter(base: Any, lora: LoraSettings) -> Any:
    """Unsloth's adapter of `lora` over a model of `load_unsloth_base`."""
    return importlib.import_module("unsloth").FastLanguageModel.get_peft_model(
        base,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        use_rslora=lora.rslora,
        bias="none",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        use_gradient_checkpointing=False,
        random_state=lora.seed,
    )


_BY_LENGTH = ("dynamic", "longrope")
"""RoPE whose frequencies depend on the longest position of a pass."""

_ROPES = {*ROPE_INIT_FUNCTIONS, "default", None}

_WINDOWED = frozenset(
    (
        *("cohere2", "exaone4", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "ministral"),
        *("mistral", "mixtral", "olmo3", "phi3", "phimoe", "qwen2", "starcoder2"),
    )
)
"""Types of text models whose windows are known to be those of their configs, by test."""

_ONE_LENGTH = frozenset(("ctrl", "opt"))
"""Types whose decoders ask a cache for one length of all conversations."""

ANOTHER_ENGINE = "Sample it with vLLM (--engine vllm, or LocalBackend(engine='vllm')), or choose another base model."
NOT_SAMPLED = ("doge", "jamba", "zamba")
"""Types whose caches give log-probs a little off those of a plain pass, which rounding may hide from the proof at
registration; test_families.py tries each."""


def usable_context(config: Any) -> int:
    """Tokens of a context over which all passes agree.

    Within the length that the model was first trained for, RoPE that depends on the length of the pass does not, so
    learner, engine and vLLM compute the same. Raises `BaseModelError` for a config that does not tell,
    and for one of no language model.
    """
    auto_class(config)
    # Transformers loads these as language models, too, but their tokens see later ones, or were trained beside others.
    kinds = dict.fromkeys(MODEL_FOR_MASKED_LM_MAPPING_NAMES, "an encoder") | dict.fromkeys(
        (*MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES), "an encoder-decoder"
    )
    if (kind := kinds.get(config.model_type)) is not None:
        raise BaseModelError(
            f"{config.model_type} is {kind}, not a causal language model", "Choose another base model."
        )
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise BaseModelError(
            f"the config of this {config.model_type} does not tell its context length (max_position_embeddings)",
            "Add it to the model's config.json.",
        )
    ropes = getattr(text, "rope_parameters", None) or {}
    parts = [ropes, *(each for each in ropes.values() if isinstance(each, dict))]
    unknown = next((each["rope_type"] for each in parts if each.get("rope_type") not in _ROPES), None)
    if unknown is not None:
        known = ", ".join(sorted(kind for kind in _ROPES if kind))
        raise BaseModelError(
            f"the config of this {config.model_type} has RoPE of type {unknown!r}, which transformers does not know",
            f"Mend rope_parameters in its config.json; there are {known}.",
        )
    by_length = [each for each in parts if each.get("rope_type") in _BY_LENGTH]
    return min([context, *(each.get("original_max_position_embeddings") or context for each in by_length)])


def why_alone(config: Any) -> str | None:
    """Why sequences of this model cannot share prefixes in a pass; None when they can."""
    return why_unbatched(config, usable_context(config))


def why_unbatched(config: Any, max_context: int) -> str | None:
    """Why the embedded engine samples one conversation of this model at a time; None when it samples them together."""
    text = config.get_text_config()
    known: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    models = [known[type(each)] for each in (config, text) if type(each) in known]
    spans = layer_spans(text)
    if spans is None or any(model._is_stateful for model in models):
        return "it has layers that keep a state (linear attention, state space or convolution)"
    if not all(model._supports_attention_backend for model in models):
        return "its attention cannot be exchanged"
    if text.model_type in _ONE_LENGTH:
        return "its decoder knows one length of all conversations"
    if getattr(text, "attn_temperature_tuning", False):
        return "its attention counts the tokens of a pass"
    if getattr(text, "index_topk", None):
        return "its attention chooses among the tokens of a pass"
    if text.model_type not in _WINDOWED and any(span.limits(max_context) for span in spans):
        return "its windows are not known here"
    return None


def check_sampled_here(config: Any) -> None:
    """Raises `BaseModelError` for a model that the embedded engine is known to sample wrongly. What is not known is
    found by the proof at registration, once the weights are loaded."""
    if config.get_text_config().model_type in NOT_SAMPLED:
        raise BaseModelError(
            f"the embedded engine cannot sample {config.model_type}: its cache gives other log-probs than a plain pass",
            ANOTHER_ENGINE,
        )
