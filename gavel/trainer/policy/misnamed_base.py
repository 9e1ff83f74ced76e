"""What a name that no base model has is instead, and what to name in its place."""

import difflib
import json
from pathlib import Path


def misnamed(source: str, known: tuple[str, ...]) -> tuple[str, str] | None:
    """What is wrong with the name and what to do; None where nothing is known to be. `known`: the built-in models."""
    path = Path(source)
    if path.is_file():
        if path.suffix == ".gguf":
            return "it is a GGUF file, whose weights cannot be trained", _UNCONVERTED
        return "it is a file", f"Name the directory that holds it: {path.parent}"
    if path.is_dir() and not (path / "config.json").is_file():
        adapter = path / "adapter_config.json"
        if adapter.is_file():
            return "it is an adapter, without its base", f"Name the base{_base_of(adapter)}; --from-checkpoint adds it."
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
        return f"its config says what transformers does not know: {type(error).__name__}: {said}", _MEND
    if "does not recognize this architecture" in said:
        return said.partition(". This could")[0], "pip install --upgrade transformers, or choose another base."
    return said, ""


UNQUANTIZED = "Choose the model that it was quantized from; --quantization 4bit holds that one in 4 bits."
_MEND = "Mend its config.json, or fetch it again."
_UNCONVERTED = "Name the model that it was made of, as the hub calls it: a directory with config.json and safetensors."


def _base_of(adapter: Path) -> str:
    try:
        found = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return f", {found}" if isinstance(found, str) and found else ""
