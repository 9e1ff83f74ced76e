"""Makes the embedded policy from scratch: tokenizer, model, behavior cloning on noisy demonstrations.

    python -m gavel.trainer.embedded.behavior_cloning --out DIR       about a quarter of an hour on one core

The mixture of clerks changes between stages: mostly careful ones first, so that the policy learns the task; then mostly
hasty ones, so that it learns the habit that the judge's reward removes. (A policy that hardly ever looks an order up
gives the reward nothing to reinforce, and never recovers.)
"""

import argparse
import asyncio
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from renderers import Qwen3RendererConfig, Renderer, create_renderer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gavel.llm.types import Message
from gavel.scenarios.library.returns_desk import scenario
from gavel.scenarios.library.returns_desk.demonstrations import Call, Clerk, demonstrate
from gavel.scenarios.task import Task
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.embedded.tokenizer import END_OF_TURN, MARKERS, PADDING, SPECIAL_TOKENS, token_id, train_tokenizer

VOCABULARY = 832
BATCH = 48
LEARNING_RATE = 3e-3
EPISODES_PER_STAGE = 16000


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the cloning: how many steps, and which clerks demonstrate."""

    steps: int
    shares: dict[Clerk, float]


STAGES = (
    Stage(1500, {"careful": 0.70, "hasty": 0.10, "guess": 0.10, "sloppy": 0.10}),
    Stage(400, {"careful": 0.18, "hasty": 0.62, "guess": 0.10, "sloppy": 0.10}),
)


@dataclass(frozen=True, slots=True)
class Episode:
    """One demonstration as tokens; `cloned` marks those that the agent itself would sample."""

    token_ids: list[int]
    cloned: list[bool]


async def _turns(task: Task, clerk: Clerk, dice: random.Random) -> list[tuple[str, list[Message]]]:
    turns = []
    for turn in demonstrate(task, clerk, dice):
        if isinstance(turn, Call):
            result = await scenario.toolbox.call(turn.name, json.dumps(turn.arguments), task)
            turns.append((turn.text, [{"role": "tool", "tool_call_id": turn.name, "content": result.content}]))
        else:
            turns.append((turn, []))
    return turns


def _episode(
    task: Task, clerk: Clerk, dice: random.Random, renderer: Renderer, tokenizer: PreTrainedTokenizerFast
) -> Episode:
    """The tokens that an endpoint would have recorded if this clerk had been the model."""
    opening = [{"role": "system", "content": scenario.system}, {"role": "user", "content": task.user}]
    ids = renderer.render_ids(opening, tools=scenario.toolbox.schemas, add_generation_prompt=True)  # type: ignore[arg-type]
    cloned = [False] * len(ids)
    end_of_turn = token_id(tokenizer, END_OF_TURN)
    for text, answers in asyncio.run(_turns(task, clerk, dice)):
        said = [*tokenizer.encode(text, add_special_tokens=False), end_of_turn]
        prompt, ids = ids, ids + said
        cloned += [True] * len(said)
        if answers:
            bridged = renderer.bridge_to_next_turn(prompt, said, answers, tools=scenario.toolbox.schemas)  # type: ignore[arg-type]
            assert bridged is not None
            ids = list(bridged.token_ids)
            cloned += [False] * (len(ids) - len(cloned))
    return Episode(ids, cloned)


def _episodes(stage: Stage, seed: int, renderer: Renderer, tokenizer: PreTrainedTokenizerFast) -> list[Episode]:
    dice = random.Random(seed)
    clerks = dice.choices(list(stage.shares), weights=list(stage.shares.values()), k=EPISODES_PER_STAGE)
    tasks = scenario.tasks("train")
    return [_episode(tasks[dice.randrange(len(tasks))], clerk, dice, renderer, tokenizer) for clerk in clerks]


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Trained on the rendered text of first-stage demonstrations, split where special tokens stand."""
    spelling = train_tokenizer([""], 256 + len(SPECIAL_TOKENS) + len(MARKERS))
    renderer = create_renderer(spelling, Qwen3RendererConfig())
    dice = random.Random(seed)
    tasks = scenario.tasks("train")
    clerks = list(STAGES[0].shares)
    texts = [
        str(
            spelling.decode(
                _episode(tasks[dice.randrange(len(tasks))], dice.choice(clerks), dice, renderer, spelling).token_ids
            )
        )
        for _ in range(1500)
    ]
    between = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS + MARKERS))
    return train_tokenizer((piece for text in texts for piece in between.split(text) if piece), VOCABULARY)


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Qwen3's shape at about 375 thousand parameters, randomly initialised."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            eos_token_id=token_id(tokenizer, END_OF_TURN),
            pad_token_id=token_id(tokenizer, PADDING),
            bos_token_id=None,
        )
    )


def _batches(
    episodes: list[Episode], steps: int, seed: int, padding: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    dice = random.Random(seed)
    for _ in range(steps):
        chosen = sorted(dice.sample(episodes, BATCH), key=lambda episode: len(episode.token_ids))
        width = len(chosen[-1].token_ids)
        ids = torch.full((BATCH, width), padding)
        labels = torch.full((BATCH, width), -100)
        for row, episode in enumerate(chosen):
            length = len(episode.token_ids)
            ids[row, :length] = torch.tensor(episode.token_ids)
            labels[row, :length] = ids[row, :length].masked_fill(~torch.tensor(episode.cloned), -100)
        yield ids, labels


def clone_policy(out: Path, seed: int = 0) -> None:
    """Writes tokenizer, configuration and float32 weights (1.5 MB) to `out`."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(seed)
    renderer = create_renderer(tokenizer, Qwen3RendererConfig())
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=sum(stage.steps for stage in STAGES), pct_start=0.05
    )
    step = 0
    for number, stage in enumerate(STAGES):
        episodes = _episodes(stage, seed * 100 + number, renderer, tokenizer)
        for ids, labels in _batches(episodes, stage.steps, seed * 100 + number, token_id(tokenizer, PADDING)):
            loss = model(input_ids=ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 50 == 0:
                print(f"stage {number + 1} step {step} loss {loss.item():.4f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=EMBEDDED_PATH)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    clone_policy(arguments.out, arguments.seed)
