"""Asks a deployment fixed prompts and proves by its answers that it serves this step's adapter.

A base without the adapter, another step, or another model is found out. Where the host gives log-probs these are
compared, else its greedy text. Prompts that the run recorded are asked too, for an adapter differs there the most.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import StoreError, TrajectoryStore
from gavel.trainer.deploy.deployment import Deployment
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.host import Report
from gavel.trainer.deploy.local_policy import LocalPolicy
from gavel.trainer.deploy.retry import repeated
from gavel.trainer.deploy.served_weights import Finding, by_greedy_text, by_logprobs
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.runs.checkpoints import Checkpoints

logger = logging.getLogger(__name__)

PROMPTS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "I want a refund for order 7890. What do you do first?"}],
    [{"role": "user", "content": "Write three sentences about the sea."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name two colours, and say why."}],
)
_RECORDED = 3
"""Prompts of the run itself."""
_TOKENS = 32
_ENOUGH = 24
"""Tokens with log-probs that are compared; with fewer the greedy text decides."""
_OTHER_STEPS = 3
_PATIENCE = 180.0
_REQUEST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Answer:
    messages: Sequence[Mapping[str, Any]]
    text: str
    tokens: list[str]
    """Their texts; empty where the host gives no log-probs."""
    logprobs: list[float]
    prompt_tokens: int | None
    """As the host counts them."""


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """The test of one checkpoint of a run; loads its base model here."""

    run: Path
    step: int
    adapter: Path
    description: Mapping[str, Any]
    """Of the run, as in model.json."""
    seconds: float = 600.0
    """For all of it."""

    async def __call__(self, deployment: Deployment, report: Report) -> str:
        """What was found. Raises `DeployError` for a deployment that serves something else."""
        report("smoke test: loading the policy here …")
        try:
            local = await asyncio.to_thread(self._local)
        except BaseModelError as error:
            return f"not run: {error.message}"
        try:
            async with asyncio.timeout(self.seconds):
                finding = await self._find(deployment, local)
        except TimeoutError as error:
            raise DeployError(f"the smoke test was not done after {self.seconds:.0f} s", "Deploy again.") from error
        if finding.served is False:
            raise DeployError(
                f"the deployment {deployment.id} fails its smoke test: {finding.said}",
                f"Look at what the host loaded as {deployment.model_id}.",
            )
        return finding.said

    def _local(self) -> LocalPolicy:
        return LocalPolicy(self.description, dict(self._candidates()))

    def _candidates(self) -> Iterator[tuple[str, Path]]:
        """The step itself, and those kept next to it."""
        yield f"step {self.step}", self.adapter
        checkpoints = Checkpoints(self.run / "checkpoints")
        others = [step for step in checkpoints.steps() if step != self.step and checkpoints.is_whole(step)]
        for step in sorted(others, key=lambda step: abs(step - self.step))[:_OTHER_STEPS]:
            yield f"step {step}", checkpoints.path(step)

    async def _find(self, deployment: Deployment, local: LocalPolicy) -> Finding:
        prompts = [*PROMPTS, *recorded_prompts(self.run)]
        async with deployment.openai_client().with_options(max_retries=0, timeout=_REQUEST_SECONDS) as client:
            sampled = [await _ask(client, deployment, local, messages, greedy=False) for messages in prompts]
            finding = await asyncio.to_thread(_of_logprobs, local, sampled)
            if finding is None:
                greedy = [await _ask(client, deployment, local, messages, greedy=True) for messages in prompts]
                finding = await asyncio.to_thread(_of_text, local, greedy)
        if finding is None:
            return Finding(False, f"it answers {len(prompts)} prompts with nothing")
        if finding.served is False:
            for answer in sampled:
                ids = local.prompt_ids(answer.messages)
                if answer.prompt_tokens not in (None, len(ids)):
                    said = f"; it renders a prompt of {len(ids)} tokens as {answer.prompt_tokens}, by another template"
                    return Finding(False, finding.said + said)
        return finding


def recorded_prompts(run: Path) -> list[list[dict[str, str]]]:
    """The first messages of up to three trajectories of the run, newest step, tools left out."""
    files = sorted((run / "trajectories").glob("**/*.jsonl.zst"), key=lambda file: (file.stem, str(file)))
    found: list[list[dict[str, str]]] = []
    try:
        for group in TrajectoryStore(files[-1]).read() if files else ():
            opening = _opening(group.trajectories[0]) if group.trajectories else []
            if opening and opening[-1]["role"] == "user" and opening not in found:
                found.append(opening)
            if len(found) == _RECORDED:
                break
    except StoreError as error:
        logger.warning("the smoke test does without the run's own prompts: %s", error.message)
    return found


def _opening(trajectory: Trajectory) -> list[dict[str, str]]:
    """The messages before the first that is not plain text of the system or the user."""
    opening: list[dict[str, str]] = []
    for message in trajectory.messages():
        content = message.get("content")
        if message["role"] not in ("system", "user") or not isinstance(content, str):
            break
        opening.append({"role": message["role"], "content": content})
    return opening


async def _ask(
    client: AsyncOpenAI,
    deployment: Deployment,
    local: LocalPolicy,
    messages: Sequence[Mapping[str, Any]],
    *,
    greedy: bool,
) -> _Answer:
    asked: dict[str, Any] = {"model": deployment.model_id, "messages": messages, "max_tokens": _TOKENS}
    asked |= {"temperature": 0.0} if greedy else {"temperature": 1.0, "top_p": 1.0, "logprobs": True}
    if local.chat_template_kwargs:
        asked["extra_body"] = {"chat_template_kwargs": local.chat_template_kwargs}

    async def create() -> ChatCompletion:
        completions: Any = client.chat.completions
        return await completions.create(**asked)

    try:
        reply = await repeated(create, patience=_PATIENCE)
    except openai.BadRequestError as error:
        if greedy or "chat template" in str(error):
            raise _unanswered(deployment, error) from error
        return _Answer(messages, "", [], [], None)  # it gives no log-probs
    except openai.OpenAIError as error:
        raise _unanswered(deployment, error) from error
    if not reply.choices:
        return _Answer(messages, "", [], [], None)
    choice = reply.choices[0]
    content = (choice.logprobs.content if choice.logprobs else None) or []
    return _Answer(
        messages,
        choice.message.content or "",
        [entry.token for entry in content],
        [entry.logprob for entry in content],
        reply.usage.prompt_tokens if reply.usage else None,
    )


def _unanswered(deployment: Deployment, error: openai.OpenAIError) -> DeployError:
    said, remedy = str(error).splitlines()[0], "Give the same command again; it goes on where it was."
    if "chat template" in said:
        remedy = "The base's tokenizer has no chat template: start the server with --chat-template FILE."
    return DeployError(f"the deployment {deployment.id} does not answer the smoke test: {said}", remedy)


def _of_logprobs(local: LocalPolicy, answers: Sequence[_Answer]) -> Finding | None:
    """None where there are too few log-probs."""
    host: list[float] = []
    said: dict[str, list[float]] = {name: [] for name in local.candidates}
    for answer in answers:
        ids = local.token_ids(answer.tokens)
        if not ids:
            continue
        host += answer.logprobs[: len(ids)]
        prompt = local.prompt_ids(answer.messages)
        for name in local.candidates:
            said[name] += local.logprobs(name, prompt, ids)
    return by_logprobs(host, local.candidates[0], said) if len(host) >= _ENOUGH else None


def _of_text(local: LocalPolicy, answers: Sequence[_Answer]) -> Finding | None:
    """None where there is no text."""
    answers = [answer for answer in answers if answer.text.strip()]
    if not answers:
        return None
    prompts = [local.prompt_ids(answer.messages) for answer in answers]
    said = {name: [local.greedy_text(name, prompt, _TOKENS) for prompt in prompts] for name in local.candidates}
    return by_greedy_text([answer.text for answer in answers], local.candidates[0], said)
