"""The real parts that tests get where installed (`make real-parts`): a language model, and Qwen's vocabulary."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from gavel.trainer.embedded.small_model import SmallModelError, small_model_path

QWEN_HEAD = 151_936
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
_PLAIN = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)


def need_small_model() -> Path:
    try:
        return small_model_path()
    except SmallModelError as error:
        pytest.skip(f"NO REAL MODEL, SO THIS TEST DID NOT RUN: {error}")


def qwen_tokenizer() -> Any:
    try:
        files = distribution("dashscope").files or ()
    except PackageNotFoundError:
        pytest.skip("NO QWEN VOCABULARY (dashscope; make real-parts), SO THIS TEST DID NOT RUN")
    (file,) = [Path(str(each.locate())) for each in files if each.name == "qwen.tiktoken"]
    tokenizer = TikTokenConverter(str(file), _SPLIT, extra_special_tokens=list(_SPECIAL)).converted()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _PLAIN])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
