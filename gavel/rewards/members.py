"""Prompts and completions, as reward hooks are given them, as members of groups.

    member("2 + 2?", "4")                                                text: a user's message and the assistant's
    member([{"role": "user", …}], [{"role": "assistant", …}, {"role": "tool", …}])     messages, in any known form

Text of the policy is never parsed: a completion that looks like JSON is text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gavel.judge.prompt.provider_formats import opened_thoughts
from gavel.llm.types import Message
from gavel.rewards.images import with_image_urls
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.formats.tool_calls import tools as openai_tools
from gavel.scenarios.tools import Toolbox
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import KEY, read_truth

Side = str | Sequence[Message]
"""A prompt or a completion: text, or messages."""


def member(prompt: Side, completion: Side, *, tools: Sequence[Any] | None = None, **fields: Any) -> Trajectory:
    """One attempt. `tools`: functions or schemas that the policy was shown; `fields`: further ones of the trajectory.

    Raises `RowError` for what is neither text nor messages.
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        completion = opened_thoughts(prompt) + completion  # a completion that is cut within them has no answer
    items = [*messages_of(prompt, "user"), *messages_of(completion, "assistant")]
    messages, _ = chat.messages(items, "a member of the group")
    return Trajectory(messages_and_choices=list(messages), tools=tool_schemas(tools), **fields)


def truth_metadata(fields: Mapping[str, Any], reference: Any = None) -> dict[str, Any]:
    """A member's metadata with the rubric, reference (or answer) and criteria in the columns of its task.

    `reference`: where the columns have none. Every member has its own, so that a group of different tasks is refused.
    """
    truth = read_truth(fields, of_row=True)
    if truth.reference is None and reference is not None:
        truth = read_truth({**fields, "reference": reference})
    return {KEY: truth.dump()} if truth else {}


def tool_schemas(tools: Sequence[Any] | None) -> list[Message] | None:
    """Schemas in OpenAI's form of functions and of schemas in any known form."""
    if not tools:
        return None
    schemas = openai_tools([tool for tool in tools if not callable(tool)]) or []
    return [*schemas, *Toolbox(tool for tool in tools if callable(tool)).schemas]


def messages_of(side: Side, role: str) -> list[Message]:
    """Text as a message of this role; messages as they are, with images that can be sent."""
    if side is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise RowError("a prompt or a completion is None.", 'Give text or messages; what was not written is "".')
    if isinstance(side, str):
        return [{"role": role, "content": side}]
    return [with_image_urls(item) if isinstance(item, dict) else item for item in side]  # pyright: ignore[reportUnnecessaryIsInstance]
