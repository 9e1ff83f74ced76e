"""The real parts that tests get where they are installed (`make real-parts`): a language model, and Qwen's vocabulary.

The vocabulary comes from `qwen.tiktoken` of the package `dashscope`; its special tokens are those of Qwen3.
"""

import base64
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from gavel.trainer.embedded.small_model import SmallModelError, small_model_path

QWEN_HEAD = 151_936
"""Rows of the published models' vocabulary head."""
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
    """The directory of the small real model; skips the test, and says so, where it cannot be had."""
    try:
        return small_model_path()
    except SmallModelError as error:
        pytest.skip(f"NO REAL MODEL, SO THIS TEST DID NOT RUN: {error}")


def qwen_tokenizer() -> Any:
    """Qwen's tokenizer with the published ids; skips the test where the vocabulary is not installed."""
    try:
        files = distribution("dashscope").files or ()
    except PackageNotFoundError:
        pytest.skip("NO QWEN VOCABULARY (dashscope; make real-parts), SO THIS TEST DID NOT RUN")
    (file,) = [Path(str(each.locate())) for each in files if each.name == "qwen.tiktoken"]
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, file.read_bytes().splitlines())}
    tokenizer = Tokenizer(models.BPE(vocab=_spelled(ranks), merges=_merges(ranks)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _PLAIN])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


def _spelled(ranks: dict[bytes, int]) -> dict[str, int]:
    letters = bytes_to_unicode()
    return {"".join(letters[byte] for byte in token): rank for token, rank in ranks.items()}


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """The two parts that each token is merged from: those that the merges of lower rank leave of its bytes."""
    letters = bytes_to_unicode()
    merges: list[tuple[str, str]] = []
    for token, rank in ranks.items():
        if len(token) > 1:
            one, other = _last_parts(token, ranks, rank)
            merges.append(("".join(letters[byte] for byte in one), "".join(letters[byte] for byte in other)))
    return merges


def _last_parts(token: bytes, ranks: dict[bytes, int], rank: int) -> tuple[bytes, bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(one + other, rank) for one, other in pairwise(parts)]
        lowest = min(pairs)
        assert lowest < rank, f"{token!r} is made of no two tokens"
        place = pairs.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]
