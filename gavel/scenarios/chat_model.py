"""What an agent loop needs of a model: chat completions under a name."""

from typing import Any, Protocol

from openai import AsyncOpenAI
from openai.types.chat.chat_completion import ChatCompletion, Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage

_PROMPT_IDS = "prompt_token_ids"


class ChatModel(Protocol):
    """Anything that serves chat completions under a name."""

    def openai_client(self) -> AsyncOpenAI: ...

    def get_inference_name(self) -> str: ...


class RolloutClient(AsyncOpenAI):
    """A client that may have a shorter way to its model than the API: rollouts ask it for their turns."""

    async def turn(self, body: dict[str, Any]) -> ChatCompletion:
        """The completion of a body of plain JSON. Raises as `chat.completions.create` does."""
        rest = {name: value for name, value in body.items() if name != "model"}
        return await self.chat.completions.create(model=body["model"], messages=[], extra_body=rest)


def first_choice(reply: object) -> Choice | None:
    """The sampled turn; None for any other reply, such as a web page from a wrong address.

    vLLM puts the prompt's token ids beside the choices; they belong to the turn.
    """
    match reply:
        case ChatCompletion(choices=[Choice(message=ChatCompletionMessage()) as choice, *_]):
            beside = (reply.model_extra or {}).get(_PROMPT_IDS)
            if beside is not None and choice.model_extra is not None:
                choice.model_extra.setdefault(_PROMPT_IDS, beside)
            return choice
        case _:
            return None
