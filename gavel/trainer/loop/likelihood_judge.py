"""A judge without a key for short texts: how likely a frozen model finds them, times a written rule of brevity.

    register("likelihood", LikelihoodJudge(model, tokenizer, neutral="Write one short sentence.").reply)
    Judge("likelihood", rubric="- one sentence of 4 to 12 words")

It reads nothing. A reply that makes sense is likelier under the model than one that does not; one that is about what
was asked is likelier after the question than after a neutral one; and words are counted. So it can say that a sentence
is short, reads as language and goes with its question, and not that it is true or good.
"""

import copy
import itertools
import json
import math
import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from transformers import AutoTokenizer, DynamicCache

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.canonical_group import Conversation, TextEvent
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.llm.types import Message
from gavel.trainer.cached_pass import cached
from gavel.trainer.embedded.small_model import SMALL_MODEL, small_model_path
from gavel.trainer.policy.policy import load_base

LIKELIHOOD = "likelihood"
"""Its name among the judge models."""
_MIDDLE = -4.5
"""Mean log-prob of a token, in nats, at which a text is as likely sense as nonsense."""
_WIDTH = 0.35
_RELATED = 1.0
"""Nats by which the question has to raise the log-prob of a whole reply for it to be as likely about it as not."""
_RULE = re.compile(r"^- .*?\b(\d+) to (\d+) words\b", re.MULTILINE)
_REMEMBERED = 4096
_BATCH = 16
"""Replies of one pass."""


class LikelihoodJudge:
    """Scores what an agent said last, given the conversation before it, by a model that is never trained."""

    def __init__(self, model: Any, tokenizer: Any, neutral: str | None = None) -> None:
        """`model`: a causal language model of transformers; `tokenizer`: its tokenizer, with a chat template.

        `neutral`: a question that asks for the same kind of reply about nothing in particular; None: whether a reply is
        about its question is not judged.
        """
        self._neutral = neutral
        self._model = model
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, int]] = {}
        """Mean log-prob and number of tokens."""

    def reply(self, messages: Sequence[Message]) -> str:
        """The reply to a judge's prompt. Raises `JudgeError` for one without trajectories or without the rule."""
        text = {role: "\n".join(m["content"] for m in messages if m["role"] == role) for role in ("system", "user")}
        attempts = read_transcripts(text["user"])
        if not attempts:
            raise JudgeError(f"gavel/{LIKELIHOOD} judges groups of trajectories; this prompt shows none.")
        shortest, longest = read_rule(text["system"])
        asked = [last_reply(attempt) for attempt in attempts.values()]
        own = neutral = self.logprobs(asked)
        if self._neutral is not None:
            neutral = self.logprobs([(_asking(before, self._neutral), said) for before, said in asked])
        scores: list[dict[str, Any]] = []
        for label, (_, said), (logprob, tokens), (less, _) in zip(attempts, asked, own, neutral, strict=True):
            score = brevity(said, shortest, longest) * sense(logprob)
            explanation = f"{len(said.split())} words, mean log-prob {logprob:.1f} a token under the base"
            if self._neutral is not None:
                nats = (logprob - less) * tokens  # by which the conversation makes the whole reply likelier
                score *= relevance(nats)
                explanation += f", the question raises it by {nats:.1f} nats in all"
            scores.append({"trajectory_id": label, "explanation": f"{explanation}.", "score": round(score, 3)})
        return json.dumps({"scores": scores})

    def logprobs(self, replies: Sequence[tuple[list[Message], str]]) -> list[tuple[float, int]]:
        """The mean log-prob of a token, in nats, of each (conversation, reply), the end of the turn included, and their
        number."""
        keys = [(json.dumps(before), said) for before, said in replies]
        with self._lock:
            missing = [key for key in dict.fromkeys(keys) if key not in self._known]
            self._known |= dict(zip(missing, self._score([self._tokens(*key) for key in missing]), strict=True))
            found = [self._known[key] for key in keys]
            while len(self._known) > _REMEMBERED:
                self._known.pop(next(iter(self._known)))
        return found

    def _tokens(self, before: str, said: str) -> tuple[list[int], list[int]]:
        """The ids of a conversation, and of the reply to it."""
        start = self._tokenizer.apply_chat_template(json.loads(before), add_generation_prompt=True, return_dict=False)
        return start, [*self._tokenizer.encode(said, add_special_tokens=False), self._tokenizer.eos_token_id]

    @torch.inference_mode()
    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, int]]:
        """Computes the common prefix of all conversations once, the rest in batches of similar length."""
        if not pairs:
            return []
        shared = _common([start[:-1] for start, _ in pairs])
        beginning = torch.tensor([pairs[0][0][:shared]], device=self._model.device)
        prefix = DynamicCache(config=self._model.config) if shared else None
        if prefix is not None:
            self._model(beginning, use_cache=True, logits_to_keep=1, **cached(self._model, prefix))
        order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]) + len(pairs[index][1]))
        values: dict[int, tuple[float, int]] = {}
        for chunk in (order[at : at + _BATCH] for at in range(0, len(order), _BATCH)):
            rows = [(*pairs[index][0][shared:], *pairs[index][1]) for index in chunk]
            longest = max(map(len, rows))
            ids = torch.tensor([row + (0,) * (longest - len(row)) for row in rows], device=self._model.device)
            cache = copy.deepcopy(prefix)
            if cache is not None:
                cache.batch_repeat_interleave(len(rows))
            # padding comes last, so nothing attends to it
            logits = self._model(ids[:, :-1], use_cache=cache is not None, **cached(self._model, cache)).logits
            logprobs = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
            for index, row, each in zip(chunk, rows, logprobs, strict=True):
                tokens = len(pairs[index][1])
                values[index] = float(each[len(row) - 1 - tokens : len(row) - 1].mean()), tokens
        return [values[index] for index in range(len(pairs))]


def load_judge(say: Callable[[str], None]) -> LikelihoodJudge:
    """The judge of `gavel demo --real`: the small base model, never trained. `say` is told of a download."""
    directory = small_model_path(say)
    tokenizers: Any = AutoTokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = tokenizers.from_pretrained(str(directory))
    return LikelihoodJudge(load_base(SMALL_MODEL, torch.float32, device), tokenizer, "Write one short sentence.")


def _common(rows: Sequence[list[int]]) -> int:
    """The length of the common prefix of all rows."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len({*column}) == 1, columns))


@lru_cache(64)
def read_rule(rubric: str) -> tuple[int, int]:
    """The fewest and the most words of a rubric's line `- … 4 to 12 words …`. Raises `JudgeError` without one."""
    found = _RULE.search(rubric)
    if found is None:
        raise JudgeError(
            f"gavel/{LIKELIHOOD} finds no rule of brevity in the rubric.",
            "Write a line such as `- one sentence of 4 to 12 words`, or name a judge model: --judge openai/gpt-5-mini.",
        )
    return int(found[1]), int(found[2])


def brevity(text: str, shortest: int, longest: int) -> float:
    """1 for a text of `shortest` to `longest` words that ends as a sentence does; less the further it is from that."""
    words = len(text.split())
    excess = max(0, words - longest)
    kept = words / shortest if words < shortest else max(0.0, 1 - excess / (2 * longest))
    return kept if text.rstrip().endswith((".", "!", "?", '."', '!"', '?"')) else kept / 2


def sense(mean_logprob: float) -> float:
    """A score from 0 for nonsense to 1 for what reads as language, by the mean log-prob of a token in nats."""
    return 1 / (1 + math.exp(min(50.0, (_MIDDLE - mean_logprob) / _WIDTH)))


def relevance(nats: float) -> float:
    """A score from 0 to 1, by the nats by which the question raises the log-prob of the whole reply."""
    return 1 / (1 + math.exp(min(50.0, _RELATED - nats)))


def _asking(before: list[Message], question: str) -> list[Message]:
    """The conversation with another last question."""
    last = max((place for place, message in enumerate(before) if message["role"] == "user"), default=None)
    asked: Message = {"role": "user", "content": question}
    return [*before, asked] if last is None else [*before[:last], asked, *before[last + 1 :]]


def last_reply(attempt: Sequence[Conversation]) -> tuple[list[Message], str]:
    """The main conversation up to the agent's last message, and that message; empty where it said nothing."""
    texts = [event for event in attempt[0].events if isinstance(event, TextEvent)]
    said = texts.pop().text if texts and texts[-1].role == "assistant" else ""
    return [{"role": event.role, "content": event.text} for event in texts], said
