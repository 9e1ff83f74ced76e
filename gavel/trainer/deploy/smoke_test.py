"""Asks a deployment prompts and proves by its answers that it serves this step's adapter.

The base with this step's adapter, with those of the steps beside it and without one are loaded here, and it is told
which of them the host's own tokens come from. Prompts that the run recorded are asked too, for an adapter differs there
the most.

Let s be the host's log-probs, a those of the adapter that was deployed and c of another candidate, each `[T]`. The
share  w = Σ (s − c)(a − c) / Σ (a − c)²  is 1 for the adapter and 0 for c; a host's rounding moves it by no more than a
few standard errors, so a base without the adapter, or another step, is told apart as far as the tokens allow. Of a host
that gives no log-probs nothing is told.
"""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import openai
import torch
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from gavel.base.errors import GavelError
from gavel.scenarios.trajectory_store import StoreError, TrajectoryStore
from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.deploy.host import GOES_ON, Deployment, Report, retry
from gavel.trainer.deploy.record import AdapterFacts, DeployError
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy
from gavel.trainer.runs.checkpoints import Checkpoints

logger = logging.getLogger(__name__)

PROMPTS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "I want a refund for order 7890. What do you do first?"}],
    [{"role": "user", "content": "Write three sentences about the sea."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name two colours, and say why."}],
)
_RECORDED = 3
"""Prompts of the run itself."""
_OPENING = ("system", "user")
_NO_TEMPLATE = "chat template"
_TOKENS = 32
_ENOUGH = 24
"""Tokens with log-probs below which nothing is told."""
_OTHER_STEPS = 3
_VLLM_HOSTS = ("vllm", "huggingface")
_UNCUT = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""vLLM takes its defaults from the base's generation config, and may give the log-probs of what they leave."""
_SECONDS = 600.0
"""Deadline of the whole test."""
_PATIENCE = 180.0
_REQUEST_SECONDS = 120.0
BASE = "the base without an adapter"
_HALF, _ERRORS = 0.5, 3.0
_SHARE_OFF = 0.2
"""By which the share may be off 1 beyond its error: an earlier step of the same run lies on the way to this one."""
_TOLERANCE = 0.25
"""Nats by which a host's log-probs are off on average at most, by another precision or a quantized base."""
_SAME = 1e-4
"""Nats; candidates that are closer (root mean square) are the same for any host."""


@dataclass(frozen=True, slots=True)
class _Answer:
    prompt_ids: list[int]
    """As rendered here."""
    text: str
    tokens: list[str]
    """Their texts; empty where the host gives no log-probs."""
    logprobs: list[float]
    prompt_tokens: int | None
    """The host's count of the prompt's tokens."""


async def smoke_test(deployment: Deployment, description: Mapping[str, Any], report: Report) -> str:
    """Whether the deployment serves the adapter of its record, in a sentence.

    `description`: the run, as in model.json, whose base is loaded here. Raises `DeployError` if something else is
    served.
    """
    report("smoke test: loading the policy here …")
    run = deployment.record.path.parents[1]
    settings: Mapping[str, Any] = description.get("policy") or {}
    try:
        policy = await asyncio.to_thread(
            lambda: Policy(
                str(description["base_model"]),
                LoraSettings.model_validate(description["lora"]),
                description.get("renderer"),
                PolicySettings.model_validate({**settings, "loader": "peft"}),
            )
        )
    except (GavelError, OSError, ValueError, RuntimeError, KeyError) as error:
        return f"not run: the base cannot be loaded here: {str(error).splitlines()[0]}"
    extra: dict[str, Any] = dict(_UNCUT) if deployment.host.name in _VLLM_HOSTS else {}
    if kwargs := settings.get("chat_template_kwargs"):
        extra["chat_template_kwargs"] = kwargs
    try:
        async with asyncio.timeout(_SECONDS), deployment.openai_client() as opened:
            client = opened.with_options(max_retries=0, timeout=_REQUEST_SECONDS)
            prompts = [*PROMPTS, *read_recorded_prompts(run)]
            answers = [await _ask(client, deployment, policy, extra, messages) for messages in prompts]
            finding = await asyncio.to_thread(_test_by_logprobs, policy, run, deployment.record.adapter, answers)
    except TimeoutError as error:
        raise DeployError(f"the smoke test was not done after {_SECONDS:.0f} s", "Deploy again.") from error
    if finding.served is False:
        template = next((each for each in answers if each.prompt_tokens not in (None, len(each.prompt_ids))), None)
        why = template and (
            f"; it renders a prompt of {len(template.prompt_ids)} tokens as {template.prompt_tokens}, "
            "by another template"
        )
        raise DeployError(
            f"the deployment {deployment.id} fails its smoke test: {finding.said}{why or ''}",
            f"Look at what the host loaded as {deployment.model_id}.",
        )
    return finding.said


def read_recorded_prompts(run: Path) -> list[list[dict[str, Any]]]:
    """The first messages of up to three trajectories of the run, newest step: plain text of system and user alone."""
    files = sorted((run / "trajectories").glob("**/*.jsonl.zst"), key=lambda file: (file.stem, str(file)))
    found: list[list[dict[str, Any]]] = []
    try:
        for group in TrajectoryStore(files[-1]).read() if files else ():
            messages = group.trajectories[0].messages() if group.trajectories else []
            plain = takewhile(lambda each: each["role"] in _OPENING and isinstance(each.get("content"), str), messages)
            opening = [{"role": each["role"], "content": each.get("content")} for each in plain]
            if opening and opening[-1]["role"] == "user" and opening not in found:
                found.append(opening)
            if len(found) == _RECORDED:
                break
    except StoreError as error:
        logger.warning("the smoke test does without the run's own prompts: %s", error.message)
    return found


async def _ask(client: AsyncOpenAI, deployment: Deployment, policy: Policy, extra: object, messages: Any) -> _Answer:
    asked: Any = {"model": deployment.model_id, "messages": messages, "extra_body": extra or None}
    create: Any = partial(client.chat.completions.create, max_tokens=_TOKENS, temperature=1.0, top_p=1.0, **asked)
    try:
        try:
            reply: ChatCompletion = await retry(partial(create, logprobs=True), patience=_PATIENCE)
        except openai.BadRequestError as error:
            if _NO_TEMPLATE in str(error):
                raise
            reply = await retry(create, patience=_PATIENCE)  # it gives no log-probs
    except openai.OpenAIError as error:
        raise DeployError(
            f"the deployment {deployment.id} does not answer the smoke test: {str(error).splitlines()[0]}",
            "The base's tokenizer has no chat template: start the server with --chat-template FILE."
            if _NO_TEMPLATE in str(error)
            else f"Give the same command again. {GOES_ON}",
        ) from error
    prompt_ids = list(policy.renderer.render_ids(messages, tools=None, add_generation_prompt=True))
    if not reply.choices:
        return _Answer(prompt_ids, "", [], [], None)
    choice = reply.choices[0]
    entries = (choice.logprobs.content if choice.logprobs else None) or []
    tokens, given = [entry.token for entry in entries], [entry.logprob for entry in entries]
    return _Answer(prompt_ids, choice.message.content or "", tokens, given, reply.usage and reply.usage.prompt_tokens)


def _test_by_logprobs(policy: Policy, run: Path, adapter: AdapterFacts, answers: Sequence[_Answer]) -> "Finding":
    """Compares the host's log-probs of the tokens whose ids their texts tell, up to the first of several ids, with
    those of the step itself, of those kept next to it, and of the base."""
    decoded: list[str] = policy.tokenizer.batch_decode([[token_id] for token_id in range(len(policy.tokenizer))])
    by_text: dict[str, int] = {}
    for token_id, text in enumerate(decoded):
        by_text[text] = -1 if text in by_text else token_id
    host: list[float] = []
    sequences: list[TokenSequence] = []
    for answer in answers:
        reply = list(takewhile(lambda token_id: token_id >= 0, (by_text.get(text, -1) for text in answer.tokens)))
        if reply:
            host += answer.logprobs[: len(reply)]
            sampled = [False] * len(answer.prompt_ids) + [True] * len(reply)
            zeros, ones = [0.0] * len(sampled), [1.0] * len(sampled)
            sequences.append(TokenSequence([*answer.prompt_ids, *reply], sampled, zeros, ones))
    if not host and not any(answer.text.strip() for answer in answers):
        return Finding(False, f"it answers {len(answers)} prompts with nothing")
    if len(host) < _ENOUGH:
        return Finding(None, f"the host gives {len(host)} log-probs, too few to tell what it serves")

    def score() -> list[float]:
        return [value.item() for sequence in sequences for value in trained_logprobs(policy, [sequence])]

    checkpoints, ours = Checkpoints(run / "checkpoints"), f"step {adapter.step}"
    others = [step for step in checkpoints.steps() if step != adapter.step and checkpoints.is_whole(step)]
    near = sorted(others, key=lambda step: abs(step - adapter.step))[:_OTHER_STEPS]
    said: dict[str, list[float]] = {}
    with torch.no_grad():
        for name, directory in (ours, adapter.directory), *((f"step {step}", checkpoints.path(step)) for step in near):
            policy.load_adapter(directory)
            said[name] = score()
        with policy.with_weights(None):
            said[BASE] = score()
    return compare_logprobs(host, ours, said)


@dataclass(frozen=True, slots=True)
class Finding:
    """Served: what the tokens tell."""

    served: bool | None
    """True: the adapter that was deployed; False: something else; None: it cannot be told."""
    said: str
    """The finding in a sentence."""


def compare_logprobs(host: Sequence[float], ours: str, candidates: Mapping[str, Sequence[float]]) -> Finding:
    """`host` and each of `candidates` `[T]`; `ours` is the name of the one that was deployed."""
    served = torch.tensor(host, dtype=torch.float64)
    given = {name: torch.tensor(values, dtype=torch.float64) for name, values in candidates.items()}
    adapter = given.pop(ours)
    off = {name: (served - values).square().mean().sqrt().item() for name, values in {ours: adapter, **given}.items()}
    nearest = min(off, key=lambda name: off[name])  # ours among equals
    mean_off = (served - adapter).abs().mean().item()
    untold: list[str] = []
    for name, values in given.items():
        apart = adapter - values
        square = apart.square().sum().item()
        if square <= len(host) * _SAME**2:
            untold.append(name)
            continue
        share = ((served - values) * apart).sum().item() / square
        error = _ERRORS * off[nearest] / math.sqrt(square)
        if nearest != ours and share + error < _HALF:
            return Finding(
                False, f"it serves {nearest}, not {ours} ({off[nearest]:.2g} nats from that, {off[ours]:.2g})"
            )
        if abs(share - 1) > _SHARE_OFF + error:
            return Finding(False, f"its log-probs are {mean_off:.2g} nats off: it serves neither {ours} nor {nearest}")
        if share - error <= _HALF:
            untold.append(name)
    if mean_off > _TOLERANCE:
        return Finding(False, f"its log-probs are {mean_off:.2g} nats off: it does not serve {ours}")
    if untold:
        return Finding(None, f"within {mean_off:.2g} nats, {ours} cannot be told from {', '.join(untold)}")
    return Finding(True, f"it serves {ours}: {len(host)} log-probs are within {mean_off:.2g} nats on average")
