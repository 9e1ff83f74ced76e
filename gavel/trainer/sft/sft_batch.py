"""Supervised fine-tuning: trains the assistant turns of trajectories, whatever their rewards.

It is REINFORCE with an advantage of 1: the loss of an update is the mean of -log p over its trained tokens. A
demonstration becomes the turns that the endpoint would have recorded, had the policy sampled them: a turn's prompt
extends the tokens of the turn before it where the renderer can prove the bridge. Trained are the tokens after the
generation prompt, up to the token that ends the turn; parsed as a reply, they give exactly the demonstrated message.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from openai.types.chat.chat_completion import Choice
from renderers import ParsedResponse, RenderedTokens, Renderer, ToolCallParseStatus

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.config import Reinforce, SftConfig, TrainConfig
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, Turn, join_turns
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.policy.policy import Policy

_ROLES = ("system", "user", "assistant", "tool")
_NEXT: Message = {"role": "user", "content": ""}
"""Placeholder for the message after the last turn: some formats end a turn by the next one's first token."""


class DemonstrationError(GavelError):
    """A message that cannot be rendered."""


class UnsayableError(GavelError):
    """A demonstrated turn that the policy could not have sampled in its chat format."""


def read_demonstrations(history: History, policy: Policy) -> list[Turn]:
    """The turns to imitate: the `Choice`s of a history, or its assistant messages where it has none.

    A choice that carries its token ids keeps them and their prompt; everything else is rendered. The log-probs are
    0 and the temperatures 1. Raises `DemonstrationError` for a malformed message, and `UnsayableError`.
    """
    items = history.messages_and_choices
    sampled = any(isinstance(item, Choice) for item in items)
    turn_tokens = _TurnTokens(policy, history)
    chosen = (isinstance(item, Choice) or (not sampled and item.get("role") == "assistant") for item in items)
    return [turn_tokens.turn(at) for at, own in enumerate(chosen) if own]


class _TurnTokens:
    """The tokens of a conversation's turns, one after another."""

    def __init__(self, policy: Policy, history: History) -> None:
        self._renderer: Renderer = policy.renderer
        self._tokenizer = policy.tokenizer
        self._history = history
        self._tools: Any = history.tools
        self._last: tuple[int, Turn] | None = None

    @cached_property
    def _messages(self) -> list[Message]:
        return [_check_content(number, message) for number, message in enumerate(self._history.messages())]

    @cached_property
    def _whole(self) -> RenderedTokens:
        return self._render([*self._messages, _NEXT])

    def turn(self, at: int) -> Turn:
        """Turn `at` as it was sampled, or where that is not known as the policy would have sampled it."""
        item = self._history.messages_and_choices[at]
        extra = (item.model_extra or {}) if isinstance(item, Choice) else {}
        prompt_ids, token_ids = extra.get("prompt_token_ids"), extra.get("token_ids")
        if not prompt_ids or not token_ids:
            prompt_ids, token_ids = self._said(at)
        turn = Turn([*prompt_ids], [*token_ids], [0.0] * len(token_ids), 1.0)
        self._last = (at, turn)
        return turn

    def _said(self, at: int) -> tuple[list[int], list[int]]:
        """The ids of its prompt and its own."""
        prompt = self._prompt(at)
        opening = prompt.token_ids[_after_messages(prompt) :]
        stops = self._renderer.get_stop_token_ids()
        ending = [stops[0]]
        # In the middle of a conversation a template adds least to what was said; but some leave out the reasoning
        # there, and some ask for a block of it at the end of their prompt.
        for as_last in (False, True):
            shown = self._render(self._messages[: at + 1]) if as_last else self._whole
            turn = _turn_tokens(shown, at)
            token_ids = self._continuation(opening, turn)
            if not token_ids:
                continue
            if token_ids[-1] in stops:
                ending = token_ids[-1:]
            else:
                token_ids += ending
            parsed = self._renderer.parse_response(token_ids, tools=self._tools, prompt_ids=prompt.token_ids)
            if _says(parsed, self._messages[at]):
                return prompt.token_ids, token_ids
        raise UnsayableError(
            f"message {at} would not be read back as it stands: {str(self._messages[at])[:200]}",
            "Put reasoning into `reasoning_content`, calls into `tool_calls`, and leave the chat's own markers out.",
        )

    def _prompt(self, at: int) -> RenderedTokens:
        before, turn = self._last or (at, None)
        between: Any = self._messages[before + 1 : at]
        if turn is not None and between and all(message["role"] != "assistant" for message in between):
            bridged = self._renderer.bridge_to_next_turn(turn.prompt_ids, turn.token_ids, between, tools=self._tools)
            if bridged is not None:
                return bridged
        return self._render(self._messages[:at], add_generation_prompt=True)

    def _render(self, messages: Any, *, add_generation_prompt: bool = False) -> RenderedTokens:
        try:
            return self._renderer.render(messages, tools=self._tools, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # whatever the library finds wrong with them
            raise DemonstrationError(
                f"a demonstration of {len(messages)} messages cannot be rendered: {error}",
                "Begin it with a system or user message, and use OpenAI's message format.",
            ) from error

    def _continuation(self, opening: Sequence[int], turn: Sequence[int]) -> list[int] | None:
        """The tokens of `turn` after `opening`; a token that spans the cut is re-encoded."""
        pairs = zip(opening, turn, strict=False)
        cut = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(opening), len(turn)))
        left = self._tokenizer.decode(opening[cut:])
        text, stop = "", cut
        while len(text) < len(left) and stop < len(turn):
            stop += 1
            text = self._tokenizer.decode(turn[cut:stop])
        if not text.startswith(left):
            return None
        return [*self._tokenizer.encode(text[len(left) :], add_special_tokens=False), *turn[stop:]]


def _check_content(number: int, message: Message) -> Message:
    """OpenAI's null content as the empty text that renderers expect; they leave out silently what they do not know."""
    content = message.get("content")
    content = "" if content is None else content
    try:
        _text(content)
        _calls(message)
        known = message["role"] in _ROLES
    except (KeyError, TypeError):
        known = False
    if not known:
        raise DemonstrationError(
            f"message {number} is no text, and no tool calls, by {', '.join(_ROLES)}: {str(message)[:200]}",
            "Write it as an OpenAI message of text, or leave its trajectory out.",
        )
    return message | {"content": content}


def _after_messages(rendered: RenderedTokens) -> int:
    """The index at which the generation prompt begins."""
    indices = rendered.message_indices
    return max((at for at, index in enumerate(indices) if index >= 0), default=-1) + 1


def _turn_tokens(rendered: RenderedTokens, at: int) -> list[int]:
    """The tokens of message `at` from its opening on, to the last one that would be sampled."""
    places = [place for place, index in enumerate(rendered.message_indices) if index == at]
    last = max((place for place in places if rendered.sampled_mask[place : place + 1] == [True]), default=-1)
    return [rendered.token_ids[place] for place in places if place <= last]


def _says(parsed: ParsedResponse, message: Message) -> bool:
    """Whether a reply was read as `message`, but for white space at the ends of its parts."""
    return (
        all(call.status == ToolCallParseStatus.OK for call in parsed.tool_calls)
        and [(call.name, _arguments(call.arguments)) for call in parsed.tool_calls] == _calls(message)
        and parsed.content.strip() == _text(message["content"]).strip()
        and (parsed.reasoning_content or "").strip() == (message.get("reasoning_content") or "").strip()
    )


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _calls(message: Message) -> list[tuple[str, Any]]:
    """The names and arguments of its tool calls."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [(function["name"], _arguments(function["arguments"])) for function in functions]


def _arguments(arguments: Any) -> Any:
    """A call's arguments as a value; those that are no JSON stay text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


METRICS = ("loss", "entropy", "gradient_norm", "learning_rate", "updates", "tokens_forwarded")
"""The metrics of a supervised step; the others of a step compare with a sampler."""

logger = logging.getLogger(__name__)


def make_sft_batch(trajectories: Iterable[Trajectory], policy: Policy) -> Batch:
    """The trajectories' assistant turns as tokens; each is a group of its own, so that processes can share an update.

    A trajectory that cannot be trained is left out and counted. Raises `DemonstrationError` for a malformed message and
    `TokenError` for token ids that the base model does not have.
    """
    batch = Batch()
    for number, trajectory in enumerate(trajectories):
        found = _sequences(number, trajectory, policy)
        if isinstance(found, LeftOut):
            batch.left_out_members[found] += 1
            continue
        batch.sequences += [TrainedSequence(tokens, 1.0, batch.trajectories) for tokens in found]
        batch.trajectories += 1
    batch.groups = batch.trajectories
    return batch


def as_training(config: SftConfig, batch: Batch) -> TrainConfig:
    """The training step whose updates learn from at most `batch_size` trajectories each, shuffled in every epoch."""
    shared = config.model_dump(exclude={"batch_size", "restart"})
    return TrainConfig(loss=Reinforce(), mini_batches=max(1, -(-batch.trajectories // config.batch_size)), **shared)


def _of_the_policy(trajectory: Trajectory) -> list[History]:
    """The histories to learn from: of several agents, those in which the policy acted, where any has its turns."""
    histories = trajectory.histories()
    acting = [each for each in histories if any(isinstance(item, Choice) for item in each.messages_and_choices)]
    return [each for each in histories if each in acting or each.agent is None] if acting else histories


def _sequences(number: int, trajectory: Trajectory, policy: Policy) -> list[TokenSequence] | LeftOut:
    """The token sequences of a trajectory, or why there are none."""
    try:
        found = join_turns([read_demonstrations(history, policy) for history in _of_the_policy(trajectory)])
    except UnsayableError as error:
        logger.warning("trajectory %d is left out: %s", number, error)
        return LeftOut.NOT_RENDERABLE
    except DemonstrationError as error:
        raise DemonstrationError(f"trajectory {number}: {error.message}", error.remedy) from error
    if not found:
        return LeftOut.NO_ASSISTANT_TURN
    if max(len(tokens.token_ids) for tokens in found) > policy.max_context:
        return LeftOut.TOO_LONG
    outside = {token for tokens in found for token in tokens.token_ids if not 0 <= token < policy.vocabulary}
    if outside:
        raise TokenError(
            f"trajectory {number} has the token id {min(outside)}, but the base model knows {policy.vocabulary} tokens",
            "Leave out the token ids that another model sampled, or choose the tokenizer that fits the base model.",
        )
    return found
