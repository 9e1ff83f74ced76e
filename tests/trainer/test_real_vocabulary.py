"""Qwen's published vocabulary: ids, chat format, a vocabulary head of 151,936 rows, and the endpoint over them."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from gavel.trainer.config import LoraSettings, TrainConfig
from gavel.trainer.policy.chat_format import chat_renderer
from tests.trainer.conftest import OPENING, TOOLS, a_group, a_model, registered, tiny_model

pytestmark = [pytest.mark.real, pytest.mark.slow]

END, START, CALL, CALLED = 151_645, 151_644, 151_657, 151_658
ASSISTANT, NEWLINE = 77_091, 198


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


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """With the published ids."""
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


@pytest.fixture
def base(tokenizer: Any, tmp_path: Path) -> Path:
    small = tiny_model(vocab_size=QWEN_HEAD, max_position_embeddings=2048, initializer_range=0.02, eos_token_id=END)
    small.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_ids_are_those_of_the_published_tokenizer(tokenizer: Any) -> None:
    assert tokenizer.encode("Hello, world!") == [9707, 11, 1879, 0]
    assert tokenizer.encode("<|im_start|>assistant\n") == [START, ASSISTANT, NEWLINE]
    assert tokenizer.encode("<|im_end|><tool_call></think>") == [END, CALL, 151_668]


@pytest.mark.parametrize("text", ["  two  spaces\n\n\tand a tab", "日本語のテキスト", "🙂👩‍👩‍👧", "naïve é", "a\r\nb"])
def test_every_text_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < len(tokenizer) == 151_669


def test_a_conversation_with_tools_is_rendered_read_and_continued_on_these_ids(tokenizer: Any) -> None:
    renderer = chat_renderer(tokenizer, "qwen3", "qwen3", "mine", {})
    tools: Any = TOOLS
    prompt = list(renderer.render_ids(OPENING, tools=tools, add_generation_prompt=True))
    assert prompt[0] == START
    assert prompt[-3:] == [START, ASSISTANT, NEWLINE]
    assert END in renderer.get_stop_token_ids()
    said = '<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "7890"}}\n</tool_call>'
    sampled = [*tokenizer.encode(said), END]
    assert sampled[0] == CALL
    assert CALLED in sampled
    read: Any = renderer.parse_response(sampled, tools=tools)
    assert [call.name for call in read.tool_calls] == ["look_up_order"]
    answer: Any = [{"role": "tool", "tool_call_id": "c1", "content": '{"days": 10}'}]
    bridged: Any = renderer.bridge_to_next_turn(prompt, sampled, answer, tools=tools)
    following = list(bridged.token_ids)
    assert following[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert following[-3:] == [START, ASSISTANT, NEWLINE]
    assert 151_665 in following  # <tool_response>


async def test_the_endpoint_samples_and_trains_over_the_whole_vocabulary(base: Path, tmp_path: Path) -> None:
    qwen = a_model("qwen", "real", base_model=str(base), renderer="qwen3", lora=LoraSettings(rank=4))
    async with registered(tmp_path / "runs", qwen, slots=8, max_context=1024) as (model, _):
        group = await a_group(model, [0.0, 1.0, 2.0, 3.0])
        result = await model.train([group], TrainConfig(learning_rate=1e-3))
    choice = group.trajectories[0].messages_and_choices[2]
    ids = choice.token_ids
    assert max(ids) < QWEN_HEAD
    assert any(identifier > 50_000 for identifier in ids)  # a random model samples the whole head
    assert choice.prompt_token_ids[-3:] == [START, ASSISTANT, NEWLINE]
    assert result.trained
    assert result.metrics["publish_gap"] < 1e-3
