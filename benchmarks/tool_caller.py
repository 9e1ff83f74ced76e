"""Makes the embedded tool caller from scratch: tokenizer, chat template, pre-training on generated tool worlds.

    python benchmarks/tool_caller.py --out DIR

It goes on where it was stopped (`DIR/state.pt`, written every few minutes). The learning rate falls to nothing over the
last three tenths of the steps, so a run may be lengthened until then. What it prints of held-out worlds: the loss a
token of the agent, the share of calls that greedy decoding has right to the last token, and of arguments when the name
is given. The rest of a conversation weighs a fifth, of which a fifth is counted.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tool_worlds import Generated, Worlds, english

PADDING, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
SKELETON = (
    *('<tool_call>\n{"name": "', '", "arguments": {"', '", "arguments": {'),
    *('"}}\n</tool_call>', "}}\n</tool_call>"),
)
"""Parts of every call, a token each."""
_WORDS = r"\p{Lu}?\p{Ll}+|\p{L}+|\p{N}|[^\p{L}\p{N}]+"
"""Letters apart from the space before them, so that a word is the same tokens in a sentence, a name and JSON."""
TEMPLATE = """\
{%- macro kind(shape) -%}
{%- if shape.enum is defined -%}
{%- for each in shape.enum -%}{{ each | tojson }}{{ "|" if not loop.last }}{%- endfor -%}
{%- elif shape.const is defined -%}{{ shape.const | tojson }}
{%- elif shape.anyOf is defined -%}
{%- for each in shape.anyOf -%}{{ kind(each) or "string" }}{{ "|" if not loop.last }}{%- endfor -%}
{%- elif shape.type == "string" -%}
{%- elif shape.type == "array" -%}[{{ kind(shape["items"]) if shape["items"] is defined }}]
{%- elif shape.type is string -%}{{ shape.type }}
{%- else -%}{{ shape | tojson }}{%- endif -%}
{%- endmacro -%}
{%- set first = messages[0].content if messages[0].role == "system" else "" -%}
{%- if first or tools -%}
<|system|>{{ first }}
{%- for tool in tools or [] -%}{%- set it = tool.function if tool.function is defined else tool -%}
{{ "\\n" if first or not loop.first }}{{ it.name }}(
{%- set given = it.parameters.properties if it.parameters and it.parameters.properties else {} -%}
{%- for name, shape in given.items() -%}
{{ name }}{{ "?" if name not in (it.parameters.required or []) }}
{%- if kind(shape) %}:{{ kind(shape) }}{% endif %}{{ "," if not loop.last }}
{%- endfor -%}){{ ": " ~ it.description.split() | join(" ") if it.description }}
{%- for name, shape in given.items() if shape.description is defined %} {{ name }}: {{ shape.description }}{% endfor -%}
{%- endfor -%}<|end|>
{%- endif -%}
{%- for message in messages -%}
{%- if loop.first and message.role == "system" -%}{%- continue -%}{%- endif -%}
<|{{ message.role }}|>{{ message.content or "" }}
{%- for call in message.tool_calls or [] -%}{%- set it = call.function if call.function is defined else call -%}
{%- set given = it.arguments -%}
{{ "\\n" if message.content or not loop.first }}<tool_call>
{"name": {{ it.name | tojson }}, "arguments": {{ given if given is string else given | tojson }}}
</tool_call>
{%- endfor -%}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""

VOCABULARY = 2560
EPISODES, COMPARISONS = 32, 64
"""Of a step: worlds or echoes, and lessons in comparing numbers, of some 30 tokens."""
AREA = 1 << 20
"""Of a pass: rows times the square of their length, which bounds what attention keeps (100 MB a layer)."""
LEARNING_RATE = 3e-3
REST = 0.2
"""Weight of a token that the agent did not write; every fifth one is counted."""
_EAGER: Any = {"attn_implementation": "eager"}
"""Faster in bfloat16 on a CPU, for such lengths."""
ECHOES = 200
"""Steps in which worlds take the place of echoes, after half as many of echoes alone: copying comes first."""
SHORT, LONG = 500, 0.15
"""Steps without long worlds, and their share from then on."""
HELD_OUT = 1_000_000_007
"""Seed of worlds that are not trained on."""


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on rendered worlds and on English prose."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SKELETON),
        special_tokens=[PADDING, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, clean_up_tokenization_spaces=False
    )
    made.chat_template = TEMPLATE
    worlds = Worlds(seed)
    told = (_rendered(each, made) for each in _some(worlds, 4000))
    marks = (END, *ROLES, *SKELETON)
    texts = (_without(text, marks) for text in itertools.chain(told, english().splitlines()))
    tokenizer.train_from_iterator(itertools.chain.from_iterable(texts), trainer)
    tokenizer.add_tokens([AddedToken(part, normalized=False) for part in SKELETON])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, clean_up_tokenization_spaces=False
    )
    made.chat_template = TEMPLATE
    return made


def _some(worlds: Worlds, count: int, echoes: float = 0.0, long: float = LONG) -> Iterator[Generated]:
    return (worlds.draw(echoes, long) for _ in range(count))


def _rendered(episode: Generated, tokenizer: Any) -> str:
    return tokenizer.apply_chat_template(episode.messages, tools=episode.tools, tokenize=False)


def _without(text: str, marks: Sequence[str]) -> list[str]:
    pieces = [text]
    for mark in marks:
        pieces = [part for piece in pieces for part in piece.split(mark) if part]
    return pieces


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of a token of the vocabulary."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def make_model(tokenizer: PreTrainedTokenizerFast, width: int, layers: int) -> Qwen3ForCausalLM:
    """Qwen3's shape, randomly initialised."""
    head = 64 if width >= 256 else 32
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=width * 11 // 4 // 32 * 32,
            num_hidden_layers=layers,
            num_attention_heads=width // head,
            num_key_value_heads=width // head // 2,
            head_dim=head,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            use_cache=False,
            eos_token_id=token_id(tokenizer, END),
            pad_token_id=token_id(tokenizer, PADDING),
            bos_token_id=None,
            **_EAGER,
        )
    )


def tokens_of(episode: Generated, tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids `[T]` of a rendered episode, and which of them the agent wrote."""
    ids = torch.tensor(tokenizer.encode(_rendered(episode, tokenizer), add_special_tokens=False))
    begins = ids.eq(token_id(tokenizer, ROLES[2]))
    end = ids.eq(token_id(tokenizer, END))
    turn = torch.zeros_like(ids)
    turn[1:] = begins[:-1].int() - (end & (_inside(begins, end)))[:-1].int()
    return ids, turn.cumsum(0).bool()


def _inside(begins: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Whether the last role before each token is the agent's."""
    number = torch.arange(len(begins))
    opened = torch.where(begins, number, -1).cummax(0).values
    closed = torch.where(end, number, -1).cummax(0).values
    before = torch.cat([torch.tensor([-1]), closed[:-1]])
    return opened > before


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def batches(episodes: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[Batch]:
    """Of episodes of nearly one length, ids `[B, T]`, and which tokens are the agent's, and which are no padding."""
    left = sorted(episodes, key=lambda each: len(each[0]))
    while left:
        rows = max(1, AREA // len(left[-1][0]) ** 2)
        left, some = left[:-rows], left[-rows:]
        ids = pad_sequence([each[0] for each in some], batch_first=True)
        said = pad_sequence([each[1] for each in some], batch_first=True)
        real = pad_sequence([torch.ones_like(each[1]) for each in some], batch_first=True)
        yield ids, said, real


def hidden_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """`[B, T-1, D]`: padding stands behind, where a causal pass does not see it."""
    with torch.autocast("cpu", torch.bfloat16):
        return model.model(input_ids=ids[:, :-1]).last_hidden_state


def backward(model: Any, episodes: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Adds the gradient of a step's loss; the mean loss of the agent's tokens."""
    total = sum(int(said.sum()) for _, said in episodes)
    loss = 0.0
    for ids, said, real in batches(episodes):
        hidden = hidden_of(model, ids)
        targets, own = ids[:, 1:], said[:, 1:]
        rest = real[:, 1:] & ~own & (torch.rand(own.shape) < 0.2)
        parts: list[torch.Tensor] = []
        for chosen in (own, rest):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model.lm_head(hidden[chosen])
            parts.append(cross_entropy(logits.float(), targets[chosen], reduction="sum") / total)
        (parts[0] + REST * parts[1]).backward()
        loss += parts[0].item()
    return loss


@torch.no_grad()
def measure(model: Any, tokenizer: PreTrainedTokenizerFast, episodes: Sequence[Any]) -> dict[str, float]:
    """Of held-out worlds, each turn after the right ones before it."""
    opens, argues = (token_id(tokenizer, part) for part in SKELETON[:2])
    loss = tokens = calls = right = named = 0.0
    for ids, said, _ in batches(episodes):
        targets, own = ids[:, 1:], said[:, 1:]
        logits = model.lm_head(hidden_of(model, ids)[own].float())
        loss += float(cross_entropy(logits, targets[own], reduction="sum"))
        tokens += int(own.sum())
        hits = torch.zeros_like(own)
        hits[own] = logits.argmax(-1) == targets[own]
        for row in range(len(ids)):
            for first in targets[row].eq(opens).nonzero().flatten().tolist():
                last = first + int((~own[row, first:]).nonzero()[0]) if not own[row, first:].all() else len(own[row])
                after = [at for at in range(first, last) if targets[row, at] == argues]
                calls += 1
                right += bool(hits[row, first:last].all())
                named += bool(hits[row, after[0] if after else first : last].all())
    return {"loss": loss / tokens, "calls right": right / max(1, calls), "arguments right": named / max(1, calls)}


def optimizers(model: Any) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers (arXiv 2502.16982), AdamW for the rest."""
    matrices = [each for each in model.model.layers.parameters() if each.ndim == 2]
    known = {id(each) for each in matrices}
    others = [each for each in model.parameters() if id(each) not in known]
    return [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def pretrain(out: Path, steps: int, width: int, layers: int, seed: int, save_seconds: float) -> None:
    """Writes tokenizer, configuration and half-precision weights to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    begun_before = (out / "state.pt").exists()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out) if begun_before else make_tokenizer(seed)
    model = make_model(tokenizer, width, layers)
    optimize = optimizers(model)
    step, tokens, seconds = 0, 0, 0.0
    if begun_before:
        state = torch.load(out / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        for each, kept in zip(optimize, state["optimizers"], strict=True):
            each.load_state_dict(kept)
        step, tokens, seconds = state["step"], state["tokens"], state["seconds"]
    held_out = [tokens_of(each, tokenizer) for each in _some(Worlds(HELD_OUT), 96)]
    echoed = [tokens_of(each, tokenizer) for each in _some(Worlds(HELD_OUT), 48, 1.0)]
    print(f"{sum(each.numel() for each in model.parameters()) / 1e6:.2f} M parameters, step {step}", flush=True)
    saved = time.monotonic()
    begun = saved - seconds
    mean = math.nan
    while step < steps:
        rate = LEARNING_RATE * min(1.0, (step + 1) / 40, (steps - step) / (0.3 * steps))
        for each in optimize:
            each.zero_grad()
            for group in each.param_groups:
                group["lr"] = rate
        torch.manual_seed(seed * 1_000_003 + step)
        long = LONG if step >= SHORT else 0.0
        echoes = max(0.05, 1 - max(0, step - ECHOES // 2) / ECHOES)
        worlds = Worlds(seed * 1_000_003 + step)
        drawn = [*_some(worlds, EPISODES, echoes, long), *(worlds.compare() for _ in range(COMPARISONS))]
        episodes = [tokens_of(each, tokenizer) for each in drawn]
        loss = backward(model, episodes)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimize:
            each.step()
        step += 1
        tokens += sum(len(ids) for ids, _ in episodes)
        mean = loss if math.isnan(mean) else 0.9 * mean + 0.1 * loss
        seconds = time.monotonic() - begun
        if step % 100 == 0 or step == steps:
            told = ", ".join(f"{name} {value:.3f}" for name, value in measure(model, tokenizer, held_out).items())
            told += f", echoes' loss {measure(model, tokenizer, echoed)['loss']:.3f}"
            print(
                f"step {step} loss {mean:.3f}, {tokens / 1e6:.2f} M tokens, {seconds:.0f} s; held out: {told}",
                flush=True,
            )
        if time.monotonic() - saved > save_seconds or step == steps:
            saved = time.monotonic()
            state = {"model": model.state_dict(), "optimizers": [each.state_dict() for each in optimize]}
            torch.save(state | {"step": step, "tokens": tokens, "seconds": seconds}, out / "state.tmp")
            (out / "state.tmp").replace(out / "state.pt")
            write_model(model, tokenizer, out)


def write_model(model: Any, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """As transformers reads it, in half precision."""
    half = Qwen3ForCausalLM(model.config).half()
    half.load_state_dict(model.state_dict())
    half.config.use_cache = True
    half.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-seconds", type=float, default=180.0)
    given = parser.parse_args()
    pretrain(given.out, given.steps, given.width, given.layers, given.seed, given.save_seconds)
