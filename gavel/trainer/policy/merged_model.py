"""The policy as a plain directory of transformers: the base with the adapter merged into its weights.

    write_merged(base_model, settings, checkpoint, out, dtype)
    AutoModelForCausalLM.from_pretrained(out)        gives the policy's log-probs

Every adapted weight W becomes W + scale * B A, computed in float32 and rounded once, to the dtype asked for. In float32
the log-probs are the policy's but for the order of additions. What was written is proven: the merged model's log-probs
on a probe are compared with those of base and adapter.
"""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.utils.hub import cached_file

from gavel.trainer.config import ExportDtype, PolicySettings
from gavel.trainer.policy.adapters import adapted_weights
from gavel.trainer.policy.loading import dtype_of, is_quantized, plain_logits
from gavel.trainer.policy.policy import load_base, load_config, naming_base, source_of
from gavel.trainer.runs.checkpoints import ExportError

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Of what reads images or sound."""
_PROBE_TOKENS = 48
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Nats by which one log-prob of the probe may differ; far more tells of a merge that is wrong."""


def export_dtype(base_model: str, dtype: ExportDtype) -> torch.dtype:
    """The type of the exported weights; auto is that of the base model's own files, float32 where they do not tell."""
    if dtype != "auto":
        return getattr(torch, dtype)
    config = load_config(base_model)
    own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    own = getattr(torch, own, None) if isinstance(own, str) else own
    return own if own in _TOLERANCE else torch.float32


def write_merged(
    base_model: str, settings: PolicySettings, checkpoint: Path | None, directory: Path, dtype: torch.dtype
) -> float:
    """Writes weights, config, tokenizer, chat template and generation config; `checkpoint` None: the base as it is.

    Returns the largest difference of a log-prob on the probe, in nats, between what is written and base with adapter.
    Raises `ExportError` when that is too large, `BaseModelError` for a base that cannot be loaded.
    """
    if settings.loader == "unsloth":
        settings = settings.model_copy(update={"loader": "peft"})  # the adapter is PEFT's either way
    base = _load_plain_base(base_model, settings)
    loaded = base.dtype
    probe = _probe(base)
    if checkpoint is None:
        before, model = _logprobs(base, probe), base
    else:
        adapted = _with_adapter(base, checkpoint)
        before = _logprobs(adapted, probe)
        _merge(adapted, dtype)
        model = adapted.unload()
    _cast(model, loaded, dtype)
    gap = float((_logprobs(model, probe) - before).abs().max())
    if not gap <= _TOLERANCE[dtype]:
        raise ExportError(
            f"the merged model's log-probs differ by {gap:.3g} nats from those of base and adapter",
            "Export the adapter instead (--form adapter), and load it over the base.",
        )
    model.save_pretrained(str(directory))
    source = source_of(base_model)
    has_tokenizer = checkpoint is not None and (checkpoint / "tokenizer_config.json").is_file()
    tokenizer: Any = AutoTokenizer.from_pretrained(str(checkpoint) if has_tokenizer else source)
    tokenizer.save_pretrained(str(directory))
    for name in _PROCESSOR_FILES:
        with contextlib.suppress(OSError, HFValidationError):
            file = cached_file(source, name, _raise_exceptions_for_missing_entries=False, local_files_only=True)
            if file is not None:
                shutil.copyfile(file, directory / name)
    return gap


def _load_plain_base(base_model: str, settings: PolicySettings) -> Any:
    """The base with the weights that the policy computes with, in no quantized form."""
    load_config(base_model)
    found = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = dtype_of(settings, found)
    with naming_base(base_model):
        base = load_base(base_model, dtype, found if settings.quantization else "cpu", settings.quantization)
    if is_quantized(base):
        base = base.dequantize()
        base.to(dtype)
    return base.eval().requires_grad_(False)


def _with_adapter(base: Any, checkpoint: Path) -> PeftModel:
    try:
        return PeftModel.from_pretrained(base, str(checkpoint)).eval()
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ExportError(
            f"the adapter in {checkpoint} cannot be put over its base model: {str(error).splitlines()[0]}",
            "Choose another step, RUN@12; each has a checkpoint of its own.",
        ) from error


@torch.no_grad()
def _merge(adapted: PeftModel, dtype: torch.dtype) -> None:
    for each in list(adapted_weights(adapted.get_base_model())):
        each.weight.data = (each.weight.float() + each.delta().float()).to(dtype)


def _cast(model: Any, loaded: torch.dtype, dtype: torch.dtype) -> None:
    """Brings the weights to `dtype`, but for those that the model keeps in float32 whatever its type."""
    kept = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    for name, parameter in model.named_parameters():
        if parameter.dtype == loaded and not kept & set(name.split(".")):
            parameter.data = parameter.data.to(dtype)


def _probe(model: Any) -> torch.Tensor:
    """Token ids, `[1, T]`."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    return torch.randint(0, vocabulary, (1, min(_PROBE_TOKENS, vocabulary)), generator=generator).to(model.device)


@torch.inference_mode()
def _logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Log-probs of the probe's tokens, `[T - 1]`."""
    logits = plain_logits(model, ids)[0, :-1].float()
    return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
