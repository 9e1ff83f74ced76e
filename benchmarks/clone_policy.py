"""Makes an embedded policy from scratch: tokenizer, model, behavior cloning on noisy demonstrations.

    python benchmarks/clone_policy.py embedded/booking-desk --out DIR

takes about a quarter of an hour on one core.

The mixture of clerks changes between stages: mostly careful ones first, so that the policy learns the task; then mostly
hasty ones, so that it learns the habit that the judge's reward removes. (A policy that hardly ever looks an order up
gives the reward nothing to reinforce, and never recovers.)

The embedded policy's tokenizer: byte-level BPE, one token per digit, Qwen3's special tokens.

Merges may cross word boundaries (only digits and special tokens split the text), so that the fixed
preamble and the JSON around the arguments become a few long tokens and episodes stay short.
"""

import argparse
import asyncio
import json
import random
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from renderers import Qwen3RendererConfig, Renderer, create_renderer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gavel.scenarios.environment import World
from gavel.scenarios.episode import Episode
from gavel.scenarios.library import booking_desk, returns_desk
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Call
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.tools import Toolbox
from gavel.trainer.cached_pass import cached
from gavel.trainer.embedded import BOOKING_POLICY, EMBEDDED_POLICY, embedded_path

Turns = Generator[Call | str, str, None]
"""Calls, then usually a closing message; the result of each call is sent to it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the cloning: how many steps, and which clerks demonstrate."""

    steps: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Course:
    """Everything that a policy is cloned from."""

    scenario: Scenario
    tasks: Sequence[Task]
    """No held-out task of the scenario is among them."""
    demonstrate: Callable[[Task, str, random.Random], Turns]
    stages: tuple[Stage, ...]


def _returns(task: Task, clerk: str, dice: random.Random) -> Turns:
    for turn in returns_desk.demonstrate(task, returns_desk.CLERKS[clerk], dice):  # noqa: UP028 - a list takes no results
        yield turn


def _booking(task: Task, clerk: str, dice: random.Random) -> Turns:
    return booking_desk.demonstrate(task, booking_desk.CLERKS[clerk], dice)


COURSES = {
    EMBEDDED_POLICY: Course(
        scenario=returns_desk.scenario,
        tasks=returns_desk.scenario.tasks("train"),
        demonstrate=_returns,
        stages=(
            Stage(1500, {"careful": 0.70, "hasty": 0.10, "guess": 0.10, "sloppy": 0.10}),
            Stage(400, {"careful": 0.18, "hasty": 0.62, "guess": 0.10, "sloppy": 0.10}),
        ),
    ),
    BOOKING_POLICY: Course(
        scenario=booking_desk.scenario,
        tasks=DrawnTasks(range(1000, 17000), booking_desk.draw_task),
        demonstrate=_booking,
        stages=(
            Stage(800, {"careful": 0.76, "hasty": 0.10, "seller": 0.08, "sloppy": 0.06}),
            Stage(250, {"careful": 0.22, "hasty": 0.48, "seller": 0.22, "sloppy": 0.08}),
        ),
    ),
}


END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
SPECIAL_TOKENS = (PADDING, "<|im_start|>", END_OF_TURN)
LONGEST_TOKEN = 48
"""Characters; so that no token swallows a whole preamble."""
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocabulary` tokens (the 256 bytes and the markers included) for `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(MARKERS),
        max_token_length=LONGEST_TOKEN,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TURN, pad_token=PADDING, clean_up_tokenization_spaces=False
    )


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of a token of the vocabulary."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


VOCABULARY = 832
BATCH = 48
MICRO_BATCH = 12
LEARNING_RATE = 3e-3
EPISODES_PER_STAGE = 16000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode of a clerk as tokens; `cloned` marks those that the agent itself would sample."""

    token_ids: list[int]
    cloned: list[bool]


class Writer:
    """Writes demonstrations of one course as the tokens that an endpoint would have recorded of such a model."""

    def __init__(self, course: Course, tokenizer: PreTrainedTokenizerFast) -> None:
        self._course = course
        self._tokenizer = tokenizer
        self._renderer: Renderer = create_renderer(tokenizer, Qwen3RendererConfig())

    async def demonstrations(self, clerks: Iterable[str], dice: random.Random) -> list[Demonstration]:
        """One of each clerk, at tasks that `dice` chooses."""
        tasks = self._course.tasks
        return [await self._one(tasks[dice.randrange(len(tasks))], clerk, dice) for clerk in clerks]

    async def _one(self, task: Task, clerk: str, dice: random.Random) -> Demonstration:
        scenario, episode = self._course.scenario, Episode(task)
        tools = Toolbox(scenario.toolbox, episode)
        if scenario.environment is not None:
            world = World(scenario.environment, episode)
            await world.reset()
            world.add_tools(tools)
        return await self._written(task, self._course.demonstrate(task, clerk, dice), tools)

    async def _written(self, task: Task, turns: Turns, tools: Toolbox) -> Demonstration:
        schemas: Any = tools.schemas
        opening: Any = [
            {"role": "system", "content": self._course.scenario.system},
            {"role": "user", "content": task.user},
        ]
        ids = self._renderer.render_ids(opening, tools=schemas, add_generation_prompt=True)
        cloned = [False] * len(ids)
        end_of_turn = token_id(self._tokenizer, END_OF_TURN)
        turn = next(turns, None)
        while turn is not None:
            text = turn.text if isinstance(turn, Call) else turn
            said = [*self._tokenizer.encode(text, add_special_tokens=False), end_of_turn]
            prompt, ids = ids, ids + said
            cloned += [True] * len(said)
            if not isinstance(turn, Call):
                break
            result = await tools.call(turn.name, json.dumps(dict(turn.arguments)))
            answers: Any = [{"role": "tool", "tool_call_id": turn.name, "content": result.content}]
            bridged = self._renderer.bridge_to_next_turn(prompt, said, answers, tools=schemas)
            assert bridged is not None
            ids = list(bridged.token_ids)
            cloned += [False] * (len(ids) - len(cloned))
            try:
                turn = turns.send(result.content)
            except StopIteration:
                turn = None
        return Demonstration(ids, cloned)


def _demonstrations(course: Course, stage: Stage, seed: int, tokenizer: PreTrainedTokenizerFast) -> list[Demonstration]:
    dice = random.Random(seed)
    clerks = dice.choices(list(stage.shares), weights=list(stage.shares.values()), k=EPISODES_PER_STAGE)
    return asyncio.run(Writer(course, tokenizer).demonstrations(clerks, dice))


def make_tokenizer(course: Course, seed: int) -> PreTrainedTokenizerFast:
    """Trained on the rendered text of first-stage demonstrations, split where special tokens stand."""
    spelling = train_tokenizer([""], 256 + len(SPECIAL_TOKENS) + len(MARKERS))
    dice = random.Random(seed)
    clerks = list(course.stages[0].shares)
    drawn = (dice.choice(clerks) for _ in range(1500))
    written = asyncio.run(Writer(course, spelling).demonstrations(drawn, dice))
    texts = [str(spelling.decode(each.token_ids)) for each in written]
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


def _batches(demonstrations: list[Demonstration], steps: int, seed: int) -> Iterator[list[Demonstration]]:
    """`BATCH` of them for each step, the shortest first."""
    dice = random.Random(seed)
    for _ in range(steps):
        yield sorted(dice.sample(demonstrations, BATCH), key=lambda each: len(each.token_ids))


def preamble_of(demonstrations: list[Demonstration]) -> list[int]:
    """The tokens with which all of them begin: system prompt and tools."""
    written = [each.token_ids for each in demonstrations]
    both = zip(min(written), max(written), strict=False)  # what the first and the last in order share, all share
    return [one for one, other in takewhile(lambda pair: pair[0] == pair[1], both)]


def backward(
    model: Any, preamble: list[int], batch: list[Demonstration], padding: int, rows: int = MICRO_BATCH
) -> float:
    """Adds the gradient of the mean loss over the cloned tokens of a batch, `rows` demonstrations at a time; that mean.

    The preamble, with which all of them begin, is computed once for the rows.
    """
    total = sum(sum(each.cloned) for each in batch)
    loss = 0.0
    for first in range(0, len(batch), rows):
        some = batch[first : first + rows]  # of nearly one length, so little is padded
        cache = DynamicCache()
        model.model(input_ids=torch.tensor([preamble]), **cached(model.model, cache))
        cache.batch_repeat_interleave(len(some))
        start = len(preamble)
        tokens = [torch.tensor(each.token_ids[start:]) for each in some]
        cloned = [torch.tensor(each.cloned[start:]) for each in some]
        ids = pad_sequence(tokens, batch_first=True, padding_value=padding)
        said = pad_sequence(cloned, batch_first=True)[:, 1:]
        hidden = model.model(input_ids=ids, **cached(model.model, cache)).last_hidden_state[:, :-1]
        part = cross_entropy(model.lm_head(hidden[said]), ids[:, 1:][said], reduction="sum") / total
        part.backward()
        loss += part.item()
    return loss


def clone_policy(course: Course, out: Path, seed: int = 0) -> None:
    """Writes tokenizer, configuration and float32 weights (1.5 MB) to `out`."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(course, seed)
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=sum(stage.steps for stage in course.stages), pct_start=0.05
    )
    step = 0
    for number, stage in enumerate(course.stages):
        demonstrations = _demonstrations(course, stage, seed * 100 + number, tokenizer)
        preamble = preamble_of(demonstrations)
        for batch in _batches(demonstrations, stage.steps, seed * 100 + number):
            optimizer.zero_grad()
            loss = backward(model, preamble, batch, token_id(tokenizer, PADDING))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 50 == 0:
                print(f"stage {number + 1} step {step} loss {loss:.4f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", nargs="?", choices=COURSES, default=EMBEDDED_POLICY)
    parser.add_argument("--out", type=Path, help="default: where the policy ships from")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    clone_policy(COURSES[arguments.policy], arguments.out or embedded_path(arguments.policy), arguments.seed)
