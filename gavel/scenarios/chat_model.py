"""What an agent loop needs of a model: chat completions under a name."""

from typing import Protocol

from openai import AsyncOpenAI
from openai.types.chat.chat_completion import ChatCompletion, Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage


class ChatModel(Protocol):
    """Anything that serves chat completions under a name."""

    def openai_client(self) -> AsyncOpenAI: ...

    def get_inference_name(self) -> str: ...


def first_choice(reply: object) -> Choice | None:
    """The sampled turn; None for any other reply, such as a web page from a wrong address."""
    match reply:
        case ChatCompletion(choices=[Choice(message=ChatCompletionMessage()) as choice, *_]):
            return choice
        case _:
            return None
