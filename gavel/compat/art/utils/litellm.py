"""Choices of LiteLLM as OpenAI's."""

from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.scenarios.foreign_choices import as_item


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """The choice with its token ids. A trajectory takes LiteLLM's own choice as well. Raises `TypeError`."""
    choice = as_item(litellm_choice)
    if not isinstance(choice, Choice):
        raise TypeError(
            f"a choice of a completion that was not streamed is needed, not {type(litellm_choice).__name__}"
        )
    return choice
